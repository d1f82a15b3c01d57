"""Results that are kept by the structure of what they were made of."""

import pytest
from tvm import relax, tirx

from graphgrad.fallback.memo import Memo


def typed(extent):
    return relax.TensorType([extent, 2], "float32")


@pytest.fixture
def made():
    """A memo and what it has asked to be made."""
    memo, calls = Memo(limit=3), []

    def get(*key):
        return memo.get(key, lambda: calls.append(key) or len(calls))

    return get, calls


def test_equal_structures_are_made_once(made):
    get, calls = made
    assert get("a", 1, typed(3)) == get("a", 1, typed(3)) == 1
    assert get("a", 1, typed(4)) == 2
    assert get("b", 1, typed(3)) == 3
    assert len(calls) == 3


def test_free_variables_are_told_apart_by_where_they_occur_alone(made):
    get, _ = made
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    assert get(typed(n), typed(n)) == get(typed(m), typed(m))
    assert get(typed(n), typed(m)) != get(typed(n), typed(n))


def test_errors_are_not_kept():
    memo = Memo()

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        memo.get(["a"], fail)
    assert memo.get(["a"], lambda: 1) == 1


def test_no_more_than_the_limit_is_kept(made):
    get, calls = made
    for number in (1, 2, 3, 4, 1):
        get(number)
    assert len(calls) == 5
