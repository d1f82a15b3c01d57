"""Matrix products from ONNX, against onnxruntime, and their gradients."""

import numpy as np
import pytest

import graphgrad as gg
from tests.frontend.converters.nodes import assert_like_onnxruntime, drawn, forward, node_model

A, B = drawn((3, 2)), drawn((2, 4), seed=1)

EINSUM = {
    "product": ("ij,jk->ik", (A, B)),
    "implicit": ("ij, jk", (A, B)),
    "ellipsis": ("...ij,...jk->...ik", (drawn((4, 3, 2)), drawn((4, 2, 3), seed=1))),
    "attention": ("bqhd,bkhd->bhqk", (drawn((2, 3, 2, 4)), drawn((2, 5, 2, 4), seed=1))),
    "trace": ("ii", (drawn((3, 3)),)),
    "diagonal": ("...ii->...i", (drawn((2, 3, 3)),)),
    "sum": ("ij->i", (A,)),
    "three": ("ij,kl,jk->il", (A, drawn((4, 5), seed=2), B)),
}

GEMM = {
    "plain": ((A, B), {}),
    "bias": ((A, B, drawn((4,), seed=2)), {"alpha": 0.5, "beta": 0.25}),
    "transposed": ((A.T, B.T, drawn((3, 1), seed=2)), {"transA": 1, "transB": 1}),
}


def einsum(name):
    equation, arrays = EINSUM[name]
    inputs = {f"x{i}": array for i, array in enumerate(arrays)}
    rank = {"ii": 0, "ij->i": 1, "...ii->...i": 2}.get(equation, arrays[0].ndim)
    return node_model("Einsum", inputs, opset=12, ranks={"y": rank}, equation=equation), inputs


def gemm(name, opset):
    arrays, attributes = GEMM[name]
    inputs = {f"x{i}": array for i, array in enumerate(arrays)}
    return node_model("Gemm", inputs, opset=opset, **attributes), inputs


@pytest.mark.parametrize("name", EINSUM)
def test_einsum_equals_onnxruntime(name):
    assert_like_onnxruntime(*einsum(name))


@pytest.mark.parametrize("name", ["ellipsis", "diagonal", "three"])
def test_gradient_of_einsum(name):
    proto, inputs = einsum(name)
    gg.check_grads(gg.from_onnx(proto), inputs)


def test_einsum_stays_one_op():
    assert "R.einsum" in gg.from_onnx(einsum("product")[0]).mod["main"].script()


def test_einsum_of_integers():
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.arange(9).reshape(3, 3)}
    proto = node_model("Einsum", arrays, opset=12, ranks={"y": 1}, equation="ij,jj->i")
    np.testing.assert_array_equal(
        forward(proto, arrays)[0], np.einsum("ij,jj->i", arrays["a"], arrays["b"])
    )


def test_a_malformed_equation():
    proto = node_model("Einsum", {"a": A}, opset=12, equation="i1->i")
    with pytest.raises(gg.ModelError, match="Einsum"):
        gg.from_onnx(proto)


@pytest.mark.parametrize("opset", [11, 13, 21])
@pytest.mark.parametrize("name", GEMM)
def test_gemm_equals_onnxruntime(name, opset):
    assert_like_onnxruntime(*gemm(name, opset))


def test_gradient_of_gemm():
    proto, inputs = gemm("bias", 13)
    gg.check_grads(gg.from_onnx(proto), inputs)
