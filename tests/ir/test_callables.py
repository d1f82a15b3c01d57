import functools
import re

import pytest

from graphgrad.ir.callables import failing_line, location_of


def function(x):
    return x


@functools.wraps(function)
def decorated(x):
    return function(x)


class CalledDecorated:
    @functools.wraps(function)
    def __call__(self, x):
        return x


class Called:
    def __call__(self, x):
        return x


@pytest.mark.parametrize(
    "subject",
    [function, decorated, functools.partial(function, 1), Called(), Called().__call__, lambda x: x],
    ids=["function", "decorated", "partial", "object", "method", "lambda"],
)
def test_file_and_line(subject):
    assert re.fullmatch(r".*test_callables\.py:\d+", location_of(subject))


def test_where_they_are_written():
    assert location_of(decorated) == location_of(function)
    assert location_of(functools.partial(decorated, 1)) == location_of(function)
    assert location_of(CalledDecorated()) == location_of(function)


def test_without_a_python_source():
    assert location_of(len) == "<built-in function len>"


def divides(x):
    return 1 / x


def calls(x):
    return function(divides(x))


@pytest.mark.parametrize(
    ("subject", "argument", "offset"),
    [(divides, 0, 1), (calls, 0, -3), (functools.partial(calls), 0, -3), (len, 0, None)],
    ids=["itself", "in the same file", "partial", "without source"],
)
def test_failing_line(subject, argument, offset):
    with pytest.raises((ZeroDivisionError, TypeError)) as caught:
        subject(argument)
    first = divides if subject is divides else calls
    expected = None if offset is None else first.__code__.co_firstlineno + offset
    assert failing_line(subject, caught.value) == expected
