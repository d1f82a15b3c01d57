import functools
import re

import pytest

from graphgrad.ir.callables import location_of


def function(x):
    return x


@functools.wraps(function)
def decorated(x):
    return function(x)


class Called:
    def __call__(self, x):
        return x


@pytest.mark.parametrize(
    "subject",
    [function, decorated, functools.partial(function, 1), Called(), lambda x: x],
    ids=["function", "decorated", "partial", "object", "lambda"],
)
def test_file_and_line(subject):
    assert re.fullmatch(r".*test_callables\.py:\d+", location_of(subject))


def test_where_they_are_written():
    assert location_of(decorated) == location_of(function)


def test_without_a_python_source():
    assert location_of(len) == "<built-in function len>"
