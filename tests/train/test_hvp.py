"""Hessian-vector products of models and of functions of modules."""

import numpy as np
import pytest
from onnx import helper
from tvm import relax

import graphgrad as gg
from graphgrad import models
from tests.frontend.graphs import model_of, random
from tests.promoted_models import promoted
from tests.running import F64, function, run

op = relax.op
X, W = random(6, 4, seed=2), random(4, 3)
U, V = random(6, 4, seed=3), random(4, 3, seed=4)


def squares():
    """Σ (x · w)², whose Hessian couples x and w."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ReduceSumSquare", ["y"], ["total"], keepdims=0),
    ]
    return gg.from_onnx(model_of(nodes, {"x": ["N", 4]}, {"total": []}, {"w": W}))


def test_products_by_name():
    outputs, gradients, products = gg.hvp(squares(), wrt=["x", "w"])(X, {"x": U, "w": V})
    y, tangent = X @ W, U @ W + X @ V
    np.testing.assert_allclose(outputs["total"], (y * y).sum(), rtol=1e-5)
    np.testing.assert_allclose(gradients["w"], 2 * X.T @ y, rtol=1e-4)
    np.testing.assert_allclose(products["w"], 2 * (U.T @ y + X.T @ tangent), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(products["x"], 2 * (tangent @ W.T + y @ V.T), rtol=1e-4, atol=1e-4)


def test_vector_that_is_left_out_is_zero():
    f = gg.hvp(squares(), wrt=["x", "w"])
    whole = f(X, {"x": np.zeros_like(U), "w": V})[2]
    part = f(X, {"w": V})[2]
    for name in whole:
        np.testing.assert_array_equal(whole[name], part[name])


def test_loss_with_targets_is_a_difference_of_gradients():
    proto = models.mlp((4, 8, 3), activation="silu")
    model = promoted(gg.from_onnx(proto))
    inputs = {"input": random(5, 4).astype(F64), "targets": np.arange(5) % 3}
    vectors = {name: random(*a.shape, seed=7).astype(F64) for name, a in model.params.items()}
    products = gg.hvp(model, loss="cross_entropy")(inputs, vectors)[2]
    ends = []
    for step in (1e-5, -1e-5):
        moved = promoted(gg.from_onnx(proto))
        for name, array in moved.params.items():
            moved.params[name] = array + step * vectors[name]
        ends.append(gg.value_and_grad(moved, loss="cross_entropy")(inputs)[1])
    for name, product in products.items():
        difference = (ends[0][name] - ends[1][name]) / 2e-5
        np.testing.assert_allclose(product, difference, rtol=1e-8, atol=1e-9)


def test_function_of_a_module():
    def build(b, x, w):
        return b.emit(op.sum(op.exp(op.matmul(x, w))))

    mod = function(build, ((2, 3), F64), ((3,), F64))
    product = gg.hvp(mod, wrt=["x1"])
    assert [p.name for p in product["main_hvp"].params] == ["x0", "x1", "x1_vector"]
    x, w, v = np.ones((2, 3)) / 2, np.array([0.1, 0.2, -0.3]), np.array([1.0, 2.0, 3.0])
    value, gradient, along = run(product, "main_hvp", x, w, v)
    e = np.exp(x @ w)
    np.testing.assert_allclose(value, e.sum())
    np.testing.assert_allclose(gradient, x.T @ e)
    np.testing.assert_allclose(along, x.T @ (e * (x @ v)))


def test_function_that_returns_no_scalar_takes_a_cotangent():
    mod = gg.hvp(function(lambda b, x: b.emit(op.exp(x)), ((3,), F64)))
    assert [p.name for p in mod["main_hvp"].params] == ["x0", "ct", "x0_vector"]
    x, ct, v = np.array([0.1, 0.2, 0.3]), np.array([1.0, 0.0, 2.0]), np.array([1.0, 1.0, 3.0])
    *_, product = run(mod, "main_hvp", x, ct, v)
    np.testing.assert_allclose(product, np.exp(x) * ct * v)


# Bad input


@pytest.mark.parametrize(
    ("vectors", "text"),
    [
        ({"nothing": V}, "'nothing'"),
        ({"w": U}, "w"),
        ({"w": V.astype("float64")}, "float64"),
        ([V], "dict"),
    ],
    ids=["name", "shape", "dtype", "list"],
)
def test_vectors_that_do_not_fit(vectors, text):
    f = gg.hvp(squares(), wrt=["w"])
    with pytest.raises(gg.InputError, match=text):
        f(X, vectors)


def test_value_that_is_computed_has_no_hessian():
    with pytest.raises(gg.ArgumentError, match="'y'"):
        gg.hvp(squares(), wrt=["y"])(X, {})


def test_arguments_of_the_other_kind_of_subject():
    with pytest.raises(gg.ArgumentError, match="func"):
        gg.hvp(squares(), func="other")
    with pytest.raises(gg.ArgumentError, match="loss"):
        gg.hvp(function(lambda b, x: b.emit(op.sum(x)), ((3,), F64)), loss="mse")
    with pytest.raises(gg.ArgumentError, match="target"):
        gg.hvp(function(lambda b, x: b.emit(op.sum(x)), ((3,), F64)), target="cuda")
    with pytest.raises(gg.ArgumentError):
        gg.hvp(3)
