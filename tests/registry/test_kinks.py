"""The derivatives that rules give at kinks and ties, where differences cannot judge them."""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from tests.running import F64, function, run


@pytest.mark.parametrize(
    ("op", "point", "derivative"),
    [
        (relax.op.nn.relu, 0.0, 0.0),
        (relax.op.abs, 0.0, 0.0),
        (lambda x: relax.op.clip(x, 0.0, 1.0), 1.0, 1.0),
        (lambda x: relax.op.clip(x, 0.0, 1.0), 1.5, 0.0),
        (lambda x: relax.op.maximum(x, relax.const(2.0, F64)), 2.0, 0.5),
        (lambda x: relax.op.minimum(x, relax.const(2.0, F64)), 2.0, 0.5),
    ],
)
def test_numeric_policy_at_kinks(op, point, derivative):
    mod = gg.vjp(function(lambda builder, x: builder.emit(op(x)), ((), F64)))
    assert run(mod, "main_vjp", np.float64(point), np.float64(1))[1] == derivative


def test_tied_maximum_is_shared_and_max_pool_gives_the_first():
    mod = gg.vjp(function(lambda b, x: b.emit(relax.op.max(x)), ((4,), F64)))
    gradient = run(mod, "main_vjp", np.array([1.0, 3.0, 3.0, 0.0]), np.float64(1))[1]
    np.testing.assert_array_equal(gradient, [0, 0.5, 0.5, 0])
    pool = function(lambda b, x: b.emit(relax.op.nn.max_pool2d(x, 2, 2)), ((1, 1, 2, 2), F64))
    gradient = run(gg.vjp(pool), "main_vjp", np.ones((1, 1, 2, 2)), np.ones((1, 1, 1, 1)))[1]
    np.testing.assert_array_equal(gradient.ravel(), [1, 0, 0, 0])
