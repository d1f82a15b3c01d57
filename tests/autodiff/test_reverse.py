"""Composite rules: ops that are differentiated in the form of other ops."""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.ops import functional as op
from graphgrad.registry import unregister
from graphgrad.registry.rule import composite
from tests import unknown_ops
from tests.running import F64, function, run

OP = "graphgrad.test_erf"
X = np.linspace(-1, 1, 6).reshape(2, 3)


@pytest.fixture
def register():
    """Register a composite for the time of a test."""
    registered = []

    def decorate(statement):
        composite(OP, samples=[])(statement)
        registered.append(OP)

    yield decorate
    for name in registered:
        unregister(name)


def erf_of_sine():
    def build(builder, x):
        return builder.emit(unknown_ops.erf(builder.emit(relax.op.sin(x))))

    return function(build, ((2, 3), F64))


def cube(x):
    """x³"""
    return x * x * x


def test_it_takes_the_place_of_its_op_on_the_path(register):
    register(cube)
    mod = gg.vjp(erf_of_sine())
    y, gradient = run(mod, "main_vjp", X, np.ones((2, 3)))
    np.testing.assert_allclose(y, np.sin(X) ** 3)
    np.testing.assert_allclose(gradient, 3 * np.sin(X) ** 2 * np.cos(X))
    text = mod["main_vjp"].script()
    assert OP not in text and OP in mod["main"].script()


def test_off_the_path_the_op_stays(register):
    register(cube)

    def build(builder, x, y):
        return builder.emit(relax.op.multiply(x, builder.emit(unknown_ops.erf(y))))

    mod = gg.vjp(function(build, ((2, 3), F64), ((2, 3), F64)), wrt="x0")
    assert OP in mod["main_vjp"].script()


def test_derivatives_of_every_order(register):
    register(cube)
    second = gg.vjp(gg.vjp(erf_of_sine()), "main_vjp", wrt="x0")
    ones = np.ones((2, 3))
    *_, gradient = run(second, "main_vjp_vjp", X, ones, np.zeros((2, 3)), ones)
    s, c = np.sin(X), np.cos(X)
    np.testing.assert_allclose(gradient, 6 * s * c * c - 3 * s**3, atol=1e-12)


def test_a_composite_of_composites(register):
    def squares(x):
        """The diagonal of the outer product of all elements: outer is a composite itself."""
        row = op.reshape(x, [6])
        table = x.emitter.emit(relax.op.outer(row.expr, row.expr))
        eye = x.emitter.emit(relax.op.eye(6, dtype=F64))
        return op.reshape(op.reduce_sum(table * eye, [1]), [2, 3])

    register(squares)
    y, gradient = run(gg.vjp(erf_of_sine()), "main_vjp", X, np.ones((2, 3)))
    np.testing.assert_allclose(y, np.sin(X) ** 2)
    np.testing.assert_allclose(gradient, 2 * np.sin(X) * np.cos(X))


@pytest.mark.parametrize("statement, message", [
    (lambda x: x.astype("float32"), r"returned float32 of shape \[2, 3\] for an output float64"),
    (op.permute_dims, r"of shape \[3, 2\] for an output"),
    (lambda x: None, "returned NoneType; an output is a Tensor"),
], ids=["dtype", "shape", "type"])  # fmt: skip
def test_what_it_returns_is_checked(register, statement, message):
    register(statement)
    with pytest.raises(gg.RuleError, match=message):
        gg.vjp(erf_of_sine())


def test_values_keep_their_names(register):
    register(cube)
    mod = erf_of_sine()
    named = [b.var.name for b in mod["main"].body.blocks[0].bindings]
    f = gg.vjp(mod, wrt=named[:1])
    _, gradient = run(f, "main_vjp", X, np.ones((2, 3)))
    np.testing.assert_allclose(gradient, 3 * np.sin(X) ** 2)
