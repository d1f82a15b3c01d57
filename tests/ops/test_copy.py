"""Copies in memory of their own: of arrays, and as an op where TVM would return the argument."""

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from tests.peers import peer
from tests.running import F64, function, run

op = relax.op

X = np.arange(12.0).reshape(3, 4)


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


@pytest.mark.parametrize("array", [X, X[:, ::2], np.float32(3), np.zeros((0, 2))])
def test_a_copy_of_numpy(array):
    copied = gg.copy(array)
    np.testing.assert_array_equal(copied, array)
    assert copied.dtype == array.dtype
    assert not gg.shares_memory(copied, array)


def test_a_copy_of_a_tensor_of_tvm():
    original = tvm.runtime.tensor(X)
    copied = gg.copy(original)
    assert isinstance(copied, tvm.runtime.Tensor)
    assert not gg.shares_memory(copied, original)
    np.testing.assert_array_equal(copied.numpy(), X)


def test_a_copy_of_a_tensor_of_torch():
    torch = peer("torch")
    original = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    copied = gg.copy(original)
    assert copied.dtype == torch.bfloat16
    assert not copied.requires_grad
    assert not gg.shares_memory(copied, original)


def test_a_copy_of_a_container_keeps_its_form():
    copied = gg.copy({"a": [X, (X,)]})
    np.testing.assert_array_equal(copied["a"][1][0], X)
    assert isinstance(copied["a"][1], tuple)
    assert not gg.shares_memory(copied, X)


class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray


def test_a_copy_of_a_named_tuple():
    copied = gg.copy(Pair(X, X))
    assert isinstance(copied, Pair)
    np.testing.assert_array_equal(copied.second, X)
    assert not gg.shares_memory(copied, X)
