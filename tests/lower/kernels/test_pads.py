"""Stages that put zeros around a tensor: what they copy, and what is no such stage."""

import pytest
from tvm import te, tirx

from graphgrad.lower.kernels.pads import border_of
from tests.lower.cpu.winograd.convolutions import stages_of
from tests.lower.kernel_programs import tensor


def border(body, shape=(6, 9), source=(4, 7)):
    """Return the border of a stage over two axes, and the tensor that it copies."""
    x = tensor(*source, name="x")
    output = te.compute([tirx.const(n, "int64") for n in shape], lambda i, j: body(x, i, j))
    stages, blocks = stages_of([x], output)
    return border_of(stages[0], blocks[stages[0].name])


def chosen(condition, value, other=0.0):
    return tirx.if_then_else(condition, value, tirx.const(other, "float32"))


def inside(i, j, before, rows=4, columns=7):
    top, left = before
    return tirx.all(i >= top, i < rows + top, j >= left, j < columns + left)


@pytest.mark.parametrize("before", [(1, 1), (2, 0), (0, 2)])
def test_a_border(before):
    top, left = before
    found = border(lambda x, i, j: chosen(inside(i, j, before), x(i - top, j - left)))
    assert found.before == before
    assert str(found.source.name) == "x"


def test_what_is_left_out():
    found = border(
        lambda x, i, j: chosen(tirx.all(i < 3, j >= 1, j < 8), x(i + 1, j - 1)), shape=(5, 9)
    )
    assert found.before == (-1, 1)


@pytest.mark.parametrize(
    "body",
    [
        lambda x, i, j: chosen(inside(i, j, (1, 1)), x(i - 1, j - 1), other=1.0),
        lambda x, i, j: chosen(inside(i, j, (1, 1)), x(i - 1, j - 1) * 2.0),
        lambda x, i, j: chosen(inside(i, j, (1, 1), rows=3), x(i - 1, j - 1)),
        lambda x, i, j: chosen(inside(i, j, (1, 1)), x(4 - i, j - 1)),
        lambda x, i, j: chosen(tirx.all(i >= 1, i < 5, j >= 2, j < 8), x(i - 1, j - 1)),
        lambda x, i, j: chosen(tirx.all(i + j >= 2, i >= 1, i < 5, j < 8), x(i - 1, 0)),
    ],
    ids=["ones", "another value", "a row less", "backwards", "a column less", "a corner"],
)
def test_other_stages(body):
    assert border(body) is None
