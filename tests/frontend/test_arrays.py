import numpy as np
import pytest
import tvm

from graphgrad.errors import InputError
from graphgrad.frontend.arrays import as_array, checked_arrays
from tests.peers import peer


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0).reshape(2, 3),
        np.arange(12.0).reshape(2, 6)[:, ::2],
        np.arange(6.0).reshape(3, 2).T,
        np.arange(6, dtype=">f4").reshape(2, 3),
        tvm.runtime.tensor(np.arange(6, dtype="int64").reshape(2, 3)),
        [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
    ],
)
def test_copies_to_contiguous_native(value):
    array = as_array("w", value)
    assert array.shape == (2, 3) and array.flags.c_contiguous and array.dtype.isnative
    assert not np.shares_memory(array, np.asarray(value if isinstance(value, np.ndarray) else 0))
    np.testing.assert_array_equal(
        array, value.numpy() if isinstance(value, tvm.runtime.Tensor) else value
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_torch_tensors(dtype):
    torch = peer("torch")
    value = torch.ones(2, 3, dtype=getattr(torch, dtype), requires_grad=dtype != "int64")
    array = as_array("w", value)
    assert array.dtype.name == dtype and (array == 1).all()


@pytest.mark.parametrize("value", ["text", None, [[1.0], [1.0, 2.0]], {"a": 1}])
def test_not_numbers(value):
    with pytest.raises(
        InputError,
        match=r"'w': a value of type \w+ .*(is not|cannot be read as) an array",
    ):
        as_array("w", value)


@pytest.mark.parametrize(
    "given, message",
    [
        ({}, r"parameters do not fit .*missing \['w'\]"),
        ({"w": np.ones(2, "float32"), "v": 1}, r"not known \['v'\]"),
        ({"w": np.ones(3, "float32")}, r"'w': expected shape \(2,\).*given shape \(3,\)"),
        ({"w": np.ones(2)}, "expected .*float32, given .*float64"),
        ([1], "expected a dict of parameters by name, given a list"),
    ],
)
def test_checked_arrays_refuses(given, message):
    with pytest.raises(InputError, match=message):
        checked_arrays("parameter", given, {"w": np.zeros(2, "float32")})


def test_checked_arrays_keeps_the_expected_order():
    expected = {"b": np.zeros(1, "float32"), "a": np.zeros(1, "float32")}
    assert list(checked_arrays("parameter", {"a": [1.0], "b": [2.0]}, expected)) == ["b", "a"]
