import numpy as np
import pytest
import tvm
from tvm import relax

from graphgrad.errors import InputError
from graphgrad.train.inputs import bind_shapes, by_name, check_types, placed, read_arrays
from graphgrad.train.recent import Limit
from graphgrad.train.staging import Staging
from tests.frontend.graphs import random
from tests.ir.test_arrays import aligned
from tests.labels import label
from tests.peers import peer

N, M = tvm.tirx.Var("N", "int64"), tvm.tirx.Var("M", "int64")
GRID = random(6, 4)


def odd_offset(array):
    """The same numbers in memory that starts at no multiple of anything."""
    copy = aligned(array.shape, array.dtype, offset=4)
    copy[...] = array
    return copy


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def torch_tensor(make):
    def build(array):
        return make(peer("torch").from_numpy(array.copy()))

    build.__name__ = f"torch_{make.__name__}"
    return build


def requires_grad(t):
    return t.requires_grad_()


def slice_of(t):
    """A slice one element into a larger tensor."""
    flat = t.new_zeros(t.numel() + 1)
    flat[1:] = t.flatten()
    return flat[1:].view(t.shape)


def transposed(t):
    return t.T.contiguous().T


LAYOUTS = [
    np.copy,
    np.asfortranarray,
    odd_offset,
    read_only,
    lambda a: a.astype(">f4"),
    lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    lambda a: a[::-1].copy()[::-1],
    np.ndarray.tolist,
    tvm.runtime.tensor,
    torch_tensor(requires_grad),
    torch_tensor(slice_of),
    torch_tensor(transposed),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=label)
def test_arrays_of_any_layout(layout):
    given = layout(GRID)
    tensor = placed(read_arrays({"x": given}, tvm.cpu()), Staging(tvm.cpu(), Limit(1)))["x"]
    np.testing.assert_array_equal(tensor.numpy(), GRID)
    assert str(tensor.dtype) == "float32"
    assert tensor.data_ptr() % 64 == 0


@pytest.mark.parametrize(
    "given, is_lent",
    [(aligned((6, 4)), True), (odd_offset(GRID), False), (aligned((4, 6)).T, False)],
)
def test_only_shared_memory_counts_as_lent(given, is_lent):
    arrays = read_arrays({"x": given}, tvm.cpu())
    assert isinstance(arrays["x"], tvm.runtime.Tensor) == is_lent
    tensor = placed(arrays, Staging(tvm.cpu(), Limit(1)))["x"]
    given[0, 0] = 7
    assert (tensor.numpy()[0, 0] == 7) == is_lent


@pytest.mark.parametrize("value", [None, "text", object(), [[1], [1, 2]], np.array([1j])])
def test_no_arrays(value):
    with pytest.raises(InputError, match=r"^input 'x': "):
        read_arrays({"x": value}, tvm.cpu())


def test_inputs_come_in_the_order_of_the_model():
    assert list(by_name({"b": 1, "a": 2}, ["a", "b"])) == ["a", "b"]
    assert by_name(5, ["a"]) == {"a": 5}


@pytest.mark.parametrize("inputs, names, message", [
    ({"imput": 1}, ["input", "mask"], "no input 'imput'.*did you mean 'input'"),
    ({"zzz": 1}, ["input"], r"only \['input'\]$"),
    ({3: 1}, ["input"], "no input 3"),
    ({"a": 1}, ["a", "b"], r"missing input\(s\) \['b'\]"),
    (1, ["a", "b"], "give a dict of arrays by name, not int"),
    (1, [], "give a dict"),
])  # fmt: skip
def test_wrong_names(inputs, names, message):
    with pytest.raises(InputError, match=message):
        by_name(inputs, names)


def given(**shapes):
    return {name: tvm.runtime.empty(shape, "float32") for name, shape in shapes.items()}


def types(**shapes):
    return {name: relax.TensorType(list(shape), "float32") for name, shape in shapes.items()}


def test_extents_of_symbolic_dimensions():
    extents = bind_shapes(given(a=(2, 3), b=(3, 6)), types(a=(N, M), b=(M, N * 3)))
    assert extents == {N: 2, M: 3}


def test_a_dimension_may_be_bound_by_a_later_input():
    assert bind_shapes(given(a=(6,), b=(3,)), types(a=(N * 2,), b=(N,))) == {N: 3}


@pytest.mark.parametrize("shapes, expected, message", [
    ({"a": (2, 3)}, {"a": (2, 4)}, r"'a': expected shape \(2, 4\), given \(2, 3\)"),
    ({"a": (2,)}, {"a": (2, 1)}, r"\(2, 1\), given \(2,\)"),
    ({"a": (2, 1)}, {"a": (2,)}, r"\(2,\), given \(2, 1\)"),
    ({"a": ()}, {"a": (1,)}, r"given \(\)"),
    ({"a": (2, 3)}, {"a": (N, N)}, r"\(N, N\) with N = 2, given \(2, 3\)"),
    ({"a": (2,), "b": (3,)}, {"a": (N,), "b": (N,)}, r"'b': expected shape \(N,\) with N = 2"),
    ({"a": (2,), "b": (5,)}, {"a": (N,), "b": (N * 2,)}, r"'b': expected shape \(N \* 2,\), given"),
    ({"a": (0, 3)}, {"a": (N, 3)}, "is empty"),
])  # fmt: skip
def test_wrong_shapes(shapes, expected, message):
    with pytest.raises(InputError, match=message):
        bind_shapes(given(**shapes), types(**expected))


def test_wrong_dtypes():
    values = {"a": tvm.runtime.empty((2,), "float64")}
    with pytest.raises(
        InputError, match=r"parameter 'a': expected dtype float32, given float64; c"
    ):
        check_types(values, types(a=(2,)), "parameter")
