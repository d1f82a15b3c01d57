"""What a step reads of a tensor: the window against the reads themselves."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback.forms.assemble import assembled
from graphgrad.fallback.indices.index_system import Axis
from graphgrad.fallback.scans.windows import window
from tests.fallback.interpreter import evaluate

STEPS = 4
"""They are 1 to 4."""


def reading(*indices, rows=5):
    """Return a tensor, a stage of a step that reads it, and the time."""
    time = Axis(te.var("t", "int32"), tirx.const(1), tirx.const(STEPS))
    x = te.placeholder((14, 3), "float64", name="x")
    place = te.placeholder((14,), "int32", name="place")

    def body(i):
        return sum((x(*at(time.var, i, place)) for at in indices), tirx.const(0.0, "float64"))

    return x, te.compute((rows,), body, name="read").op, time


CASES = [
    ("row", [lambda t, i, p: (t, 0)], (0, 1, 0, 1)),
    ("rows", [lambda t, i, p: (t, 0), lambda t, i, p: (t - 1, 1)], (0, 1, -1, 2)),
    ("segment", [lambda t, i, p: (3 * t + i - 3, 2)], (0, 3, -3, 5)),
    ("backwards", [lambda t, i, p: (13 - 2 * t - i, i % 3)], (0, -2, 9, 5)),
    ("column", [lambda t, i, p: (i, t - 1)], (1, 1, -1, 1)),
    ("outside", [lambda t, i, p: (5 * t - i, 0)], (0, 5, -4, 5)),
    ("fixed", [lambda t, i, p: (i, 0)], None),
    ("fixed-too", [lambda t, i, p: (t, 0), lambda t, i, p: (0, 0)], None),
    ("two-strides", [lambda t, i, p: (t, 0), lambda t, i, p: (2 * t, 0)], None),
    ("data", [lambda t, i, p: (p[t], 0)], None),
    ("remainder", [lambda t, i, p: (tirx.floormod(t, 2), 0)], None),
    ("all", [lambda t, i, p: (t + 2 * i, 0)], (0, 1, 0, 9)),
]


@pytest.mark.parametrize(
    ("indices", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_window_is_the_smallest_with_all_reads(indices, expected):
    x, op, time = reading(*indices)
    found = window(x, [op], time)
    if expected is None:
        assert found.dimension is None
    else:
        assert (found.dimension, found.stride, found.first, found.extent) == expected


def test_a_window_as_large_as_the_tensor_is_the_tensor():
    x, op, time = reading(lambda t, i, p: (t + i, 0), rows=14)
    assert window(x, [op], time).dimension is None


@pytest.mark.parametrize("name", ["row", "rows", "segment", "backwards", "column", "outside"])
def test_cotangents_of_parts_go_where_the_parts_were_read(name):
    """⟨rows, parts⟩ = ⟨cotangent, x⟩, with parts that are zero outside the tensor."""
    (indices,) = [case[1] for case in CASES if case[0] == name]
    x, op, time = reading(*indices)
    found = window(x, [op], time)
    part = found.part()
    shape = [int(extent) for extent in part.shape]
    generator = np.random.default_rng(1)
    values = generator.standard_normal((14, 3))
    cotangents = generator.standard_normal((STEPS + 1, *shape))
    rows = te.placeholder((STEPS + 1, *shape), "float64", name="rows")
    total = assembled(x, [found.contribution(rows)])
    (given,) = evaluate([total], [(rows, cotangents)])
    expected = 0.0
    for back in range(1, STEPS + 1):
        (read,) = evaluate([part], [(x, values), (time.var, STEPS + 1 - back)])
        expected += (read * cotangents[back]).sum()
    np.testing.assert_allclose((given * values).sum(), expected)
