"""Functions that overwrite what they are given, called with tensors that share memory."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.errors import AliasError
from graphgrad.ir.arrays import to_tensor
from tests.cuda.device.running import gpu
from tests.running import function


def tensor(value):
    return to_tensor(np.full(3, value, "float32"), tvm.cuda())


def compiled(overlap):
    """Return a function that adds the gradient of a sum of exponentials to an accumulator."""
    mod = function(lambda b, x: b.emit(relax.op.exp(x)), ((3,), "float32"))
    mod = gg.vjp(mod, grad_req="add")
    return relax.VirtualMachine(gg.compile(mod, gpu(), overlap=overlap), tvm.cuda())["main_vjp"]


@pytest.mark.parametrize("overlap", ["refuse", "copy"])
def test_an_accumulator_of_its_own_is_overwritten(overlap):
    accumulator = tensor(5)
    _, (total,) = compiled(overlap)(tensor(0), tensor(2), accumulator)
    np.testing.assert_array_equal(total.numpy(), 7)
    assert total.data_ptr() == accumulator.data_ptr()


def test_a_shared_one_is_refused():
    x = tensor(1)
    with pytest.raises(AliasError, match=r"'accumulator\.x0' of 'main_vjp' is overwritten"):
        compiled("refuse")(x, tensor(2), x)
    np.testing.assert_array_equal(x.numpy(), 1)


def test_a_shared_one_is_copied():
    x = tensor(0)
    (output, (total,)) = compiled("copy")(x, tensor(2), x)
    np.testing.assert_array_equal(output.numpy(), 1)
    np.testing.assert_array_equal(total.numpy(), 2)
    np.testing.assert_array_equal(x.numpy(), 0)
