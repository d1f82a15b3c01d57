"""A copy as a Relax op: memory of its own, where TVM would return the argument."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from tests.running import F64, function, run

op = relax.op


def results(mod, *arrays):
    tensors = [to_tensor(array) for array in arrays]
    return tensors, relax.VirtualMachine(gg.compile(mod), tvm.cpu())["main"](*tensors)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_a_returned_parameter_is_the_argument_and_a_copy_is_not(dtype):
    def both(builder, x):
        return relax.Tuple([x, builder.emit(gg.copy(x))])

    ones = np.ones((2, 3)).astype(getattr(ml_dtypes, dtype, dtype))
    [x], (same, copied) = results(function(both, ((2, 3), dtype)), ones)
    assert gg.shares_memory(same, x)
    assert not gg.shares_memory(copied, x)
    np.testing.assert_array_equal(copied.numpy(), x.numpy())


def test_a_copy_of_a_copy_and_of_a_scalar():
    def twice(builder, x):
        return builder.emit(gg.copy(builder.emit(gg.copy(x))))

    [x], copied = results(function(twice, ((), F64)), np.float64(3))
    assert copied.numpy() == 3
    assert not gg.shares_memory(copied, x)


def test_a_copy_has_the_gradient_of_the_identity():
    mod = function(lambda b, x: b.emit(op.exp(b.emit(gg.copy(x)))), ((4,), F64))
    x, ct = np.random.default_rng(0).standard_normal((2, 4))
    _, dx = run(gg.vjp(mod), "main_vjp", x, ct)
    np.testing.assert_allclose(dx, ct * np.exp(x))


def test_what_is_no_tensor_is_refused():
    shape = relax.ShapeExpr([2, 3])
    with pytest.raises(gg.ArgumentError, match=r"copy takes a tensor, given a value of type"):
        gg.copy(shape)
