"""Which arrays share memory."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from tests.peers import peer

X = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [
        (X, X, True),
        (X[0], X[1], False),
        (X[0], X[:, 1], True),
        (X[::2], X[1::2], False),
        (X[:, ::2], X[:, 1::2], False),
        (X.T, X[2, 3:], True),
        (X[:0], X, False),
        (X[0, 0], X, False),
        ([X[0], {"x": X[1]}], (X[2], X[1, 2:]), True),
        ([X[0], {"x": X[1]}], (X[2],), False),
        ([], X, False),
    ],
)
def test_shared_memory_of_numpy(a, b, shared):
    assert gg.shares_memory(a, b) is shared
    assert gg.shares_memory(b, a) is shared


def test_shared_memory_of_views_of_tvm():
    whole = tvm.runtime.tensor(X)
    second = whole._create_view((4,), "float64", relative_byte_offset=32)
    third = whole._create_view((4,), "float64", relative_byte_offset=64)
    assert gg.shares_memory(whole, second)
    assert not gg.shares_memory(second, third)
    assert not gg.shares_memory(whole, X)


def test_shared_memory_of_different_libraries():
    torch = peer("torch")
    array = X.copy()
    tensor = torch.from_numpy(array)
    assert gg.shares_memory(tensor, array)
    assert gg.shares_memory(tensor.T[1:], array[:, 1])
    assert not gg.shares_memory(tensor.T[1:], array[:, 0])


def test_a_comparison_that_takes_too_long_errs_on_the_safe_side(monkeypatch):
    odd, even = X.reshape(-1)[1::2], X.reshape(-1)[::2]
    assert not gg.shares_memory(odd, even)
    monkeypatch.setattr("graphgrad.memory.sharing.np.shares_memory", too_hard)
    assert gg.shares_memory(odd, even)
    assert not gg.shares_memory(X[0], X[1])


def too_hard(*_, **__):
    raise np.exceptions.TooHardError


@pytest.mark.parametrize("value", ["text", None, 3])
def test_what_is_no_array_is_refused(value):
    with pytest.raises(gg.InputError, match="is no array whose memory is known"):
        gg.shares_memory(value, X)
    with pytest.raises(gg.InputError, match="is no array whose memory is known"):
        gg.copy(value)


def test_tensors_of_torch_without_elements_of_their_own_are_refused():
    torch = peer("torch")
    for value in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        with pytest.raises(gg.InputError, match="is no array whose memory is known"):
            gg.shares_memory(X, value)
    assert not gg.shares_memory(X, torch.empty(0))


def test_a_value_that_is_not_in_memory_cannot_be_compared():
    var = relax.Var("x", relax.TensorType((2,), "float32"))
    with pytest.raises(gg.InputError, match="Relax tensor for a copy"):
        gg.shares_memory(var, X)
