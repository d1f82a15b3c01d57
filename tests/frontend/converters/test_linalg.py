"""Matrix products from ONNX, against onnxruntime, and their gradients."""

import numpy as np
import pytest

import graphgrad as gg
from tests.frontend.converters.nodes import assert_like_onnxruntime, drawn, forward, node_model
from tests.running import F64

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


def det_model(x, shape=None):
    return node_model(
        "Det", {"x": x}, opset=22, ranks={"y": x.ndim - 2}, shapes={"x": shape or x.shape}
    )


def cofactors(matrix):
    """Return the derivative of a determinant by its definition."""
    size = len(matrix)
    minors = [[np.delete(np.delete(matrix, i, 0), j, 1) for j in range(size)] for i in range(size)]
    signs = (-1.0) ** np.add.outer(np.arange(size), np.arange(size))
    return signs * [[np.linalg.det(minor) for minor in row] for row in minors]


SINGULAR = {
    "regular": drawn((4, 4), dtype=F64),
    "permutation": np.eye(4)[[2, 0, 1, 3]],
    "rank 3": drawn((4, 3), dtype=F64) @ drawn((3, 4), seed=1, dtype=F64),
    "integers of rank 3": np.array([[0.0, 1, 2, 3], [0, 0, 0, 0], [1, 2, 3, 4], [2, 2, 1, 1]]),
    "rank 2": np.arange(16.0).reshape(4, 4),
    "rank 1": np.ones((4, 4)),
    "zero": np.zeros((4, 4)),
}


def test_determinants_and_their_derivatives_singular_or_not():
    x = np.stack([*SINGULAR.values()])
    f = gg.value_and_grad(gg.from_onnx(det_model(x, ("n", 4, 4))), wrt=["x"])
    outputs, grads = f({"x": x}, np.ones(len(x)))
    np.testing.assert_allclose(outputs["y"], np.linalg.det(x), atol=1e-12)
    for name, matrix, gradient in zip(SINGULAR, x, grads["x"], strict=True):
        np.testing.assert_allclose(gradient, cofactors(matrix), atol=1e-12, err_msg=name)


def test_gradient_of_determinants():
    x = drawn((2, 1, 3, 3), dtype=F64)
    gg.check_grads(gg.from_onnx(det_model(x)), {"x": x})


def test_determinants_of_half_precision_and_of_nothing():
    x = drawn((2, 3, 3), dtype="float16")
    (ours,) = forward(det_model(x), {"x": x})
    assert ours.dtype == np.float16
    np.testing.assert_allclose(ours, np.linalg.det(x.astype(F64)), rtol=2e-3)
    nothing = np.zeros((2, 0, 0), "float32")
    np.testing.assert_array_equal(forward(det_model(nothing), {"x": nothing})[0], [1, 1])


@pytest.mark.parametrize(
    ("shape", "message"),
    [((2, 3), "last two axes must be equal"), (("n", "n"), "must be a number")],
)
def test_determinants_of_other_matrices_are_refused(shape, message):
    with pytest.raises(gg.ModelError, match=message):
        gg.from_onnx(det_model(drawn((3, 3)), shape))
