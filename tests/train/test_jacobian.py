"""Jacobians of models and of functions of modules."""

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

import graphgrad as gg
from tests.frontend.graphs import model_of, random
from tests.running import F64, function, run

op = relax.op
X, W = random(5, 4, seed=2), random(4, 3)


def tanh_of_product():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Tanh", ["a"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["place"], axis=1, keepdims=0),
        helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0),
    ]
    outputs = {"place": ["N"], "y": ["N", 3], "total": []}
    proto = model_of(nodes, {"x": ["N", 4]}, outputs, {"w": W})
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    return gg.from_onnx(proto)


def expected():
    derivative = 1 - np.tanh(X @ W) ** 2
    by_x = np.einsum("no,io,nm->nomi", derivative, W, np.eye(5))
    by_w = np.einsum("no,ni,op->noip", derivative, X, np.eye(3))
    return by_x, by_w


@pytest.mark.parametrize("mode", ["auto", "fwd", "rev"])
def test_jacobian_of_a_model(mode):
    outputs, jacobians = gg.jacobian(tanh_of_product(), wrt=["x", "w"], mode=mode)(X)
    assert list(outputs) == ["place", "y", "total"]
    by_x, by_w = expected()
    np.testing.assert_allclose(jacobians["x"], by_x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jacobians["w"], by_w, rtol=1e-4, atol=1e-5)


def test_jacobian_of_a_chosen_output():
    _, jacobians = gg.jacobian(tanh_of_product(), wrt="w", of="total")(X)
    np.testing.assert_allclose(jacobians["w"], expected()[1].sum((0, 1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["fwd", "rev"])
def test_function_of_a_module(mode):
    mod = function(lambda b, x, w: b.emit(op.exp(op.matmul(x, w))), ((2, 3), F64), ((3,), F64))
    x, w = np.ones((2, 3)) / 3, np.array([0.1, 0.2, 0.3])
    value, by_w = run(gg.jacobian(mod, wrt=["x1"], mode=mode), "main_jacobian", x, w)
    np.testing.assert_allclose(by_w, value[:, None] * x)


def test_value_that_the_output_does_not_depend_on():
    mod = function(lambda b, x, w: b.emit(op.exp(x)), ((2,), F64), ((3,), F64))
    for mode in ("fwd", "rev"):
        *_, by_w = run(gg.jacobian(mod, mode=mode), "main_jacobian", np.ones(2), np.ones(3))
        assert by_w.shape == (2, 3) and not by_w.any()


# Bad input


@pytest.mark.parametrize(
    "options",
    [{"of": "place"}, {"of": "nothing"}, {"mode": "both"}, {"func": "other"}, {"wrt": "none"}],
    ids=str,
)
def test_arguments_of_a_model(options):
    with pytest.raises(gg.ArgumentError):
        gg.jacobian(tanh_of_product(), **options)(X)


@pytest.mark.parametrize(
    "options",
    [{"of": 1}, {"of": "y"}, {"training": True}, {"target": "cuda"}, {"winograd": False}],
    ids=str,
)
def test_arguments_of_a_module(options):
    mod = function(lambda b, x: b.emit(op.exp(x)), ((2,), F64))
    with pytest.raises(gg.ArgumentError):
        gg.jacobian(mod, **options)


def test_symbolic_extents_are_refused():
    x = relax.Var("x", relax.TensorType([tvm.tirx.Var("n", "int64")], F64))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.exp(x)))
    with pytest.raises(gg.ArgumentError, match="extents"):
        gg.jacobian(builder.get())
