"""Operators of `Tensor`, with relax expressions, constants and numbers on either side."""

import operator

import numpy as np
import pytest
from tvm import relax, tirx

import graphgrad as gg
from graphgrad.ir.tensor import Emitter
from tests.running import F64, function, run

X = np.array([[1.0, 2.0], [3.0, 5.0]])

OTHERS = {
    "call": (relax.op.exp, np.exp(X)),
    "variable": (lambda x: x, X),
    "item": (lambda x: relax.TupleGetItem(relax.Tuple([x, x]), 1), X),
    "constant": (lambda x: relax.const(X + 7.0, F64), X + 7.0),
}


@pytest.mark.parametrize(
    "apply", [operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul]
)
@pytest.mark.parametrize("name", OTHERS)
def test_relax_expressions_on_either_side(apply, name):
    make, value = OTHERS[name]

    def build(builder, x):
        tensor = Emitter(builder).lift(x)
        results = [apply(make(x), tensor), apply(tensor, make(x))]
        return builder.emit(relax.Tuple([result.expr for result in results]))

    left, right = run(function(build, ((2, 2), F64)), "main", X)
    np.testing.assert_allclose(left, apply(value, X), rtol=1e-12)
    np.testing.assert_allclose(right, apply(X, value), rtol=1e-12)


def test_operators_of_relax_alone_are_as_they_were():
    x = relax.Var("x", relax.TensorType([2], F64))
    assert (x - x).op.name == "relax.subtract"
    with pytest.raises(TypeError, match="const"):
        _ = x * 2.0


@pytest.mark.parametrize(
    ("other", "name"),
    [(X, "ndarray"), ("x", "str"), (tirx.Var("n", "int64"), "Var"), ([1.0], "list")],
    ids=["array", "text", "extent", "list"],
)
def test_what_is_no_operand(other, name):
    error = rf"Tensor\(\[2, 2\], float64\) was given an operand of type {name}; give a tensor"
    for apply in (lambda tensor: tensor * other, lambda tensor: other - tensor):
        with pytest.raises(gg.ArgumentError, match=error):
            function(lambda b, x, f=apply: f(Emitter(b).lift(x)).expr, ((2, 2), F64))
