"""What is proved of two accesses is so at every pair of points."""

import random
from itertools import product

import pytest
import tvm
from tvm import tirx

from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.lift.disjoint import Place, is_same_point, never_meet
from graphgrad.fallback.walk import substituted

EXTENT = 4


def var(name):
    return tirx.Var(name, "int32")


def const(value):
    return tirx.const(value, "int32")


PIVOT, ROW, COLUMN = var("k"), var("i"), var("j")
OUTER = Axis(PIVOT, const(0), const(EXTENT))
BELOW = Axis(ROW, PIVOT + 1, EXTENT - 1 - PIVOT)
"""The rows below the pivot's."""


def place(indices, *axes, guards=()):
    return Place([const(i) if isinstance(i, int) else i for i in indices], axes, guards)


def test_the_row_of_a_pivot_is_not_below_it():
    column = Axis(COLUMN, PIVOT + 1, EXTENT - 1 - PIVOT)
    writing = place([ROW, COLUMN], OUTER, BELOW, column)
    assert never_meet(place([PIVOT, COLUMN], OUTER, BELOW, column), writing, [OUTER])
    assert never_meet(place([ROW, PIVOT], OUTER, BELOW, column), writing, [OUTER])
    assert not never_meet(place([PIVOT, COLUMN], OUTER, BELOW, column), writing)  # of another pivot
    assert not never_meet(place([COLUMN, ROW], OUTER, BELOW, column), writing, [OUTER])


def test_ranges_are_taken_together():
    """k < i and i <= j: no constant bounds tell k from j."""
    rows = Axis(COLUMN, const(0), const(EXTENT))
    columns = Axis(ROW, const(0), COLUMN + 1)
    sum_axis = Axis(PIVOT, const(0), ROW)
    axes = (rows, columns, sum_axis)
    assert never_meet(place([ROW, PIVOT], *axes), place([ROW, COLUMN], *axes), [rows])
    assert not never_meet(place([ROW, PIVOT], *axes), place([COLUMN, ROW], *axes), [rows])


def test_conditions_count():
    axes = (OUTER, Axis(ROW, const(0), const(EXTENT)))
    pivot, row = [PIVOT, PIVOT], [ROW, PIVOT]
    unequal = ((PIVOT.equal(ROW), False),)
    assert never_meet(place(pivot, *axes, guards=unequal), place(row, *axes, guards=unequal))
    assert not never_meet(place(pivot, *axes), place(row, *axes))
    above = ((ROW < PIVOT, True),)
    assert never_meet(place(row, *axes, guards=above), place(pivot, *axes))


def test_what_is_read_from_data_proves_nothing():
    data = tirx.decl_buffer((EXTENT,), "int32", "data")
    read = tirx.BufferLoad(data, [PIVOT])
    inner = Axis(ROW, const(0), read)
    assert not never_meet(place([0, ROW], OUTER, inner), place([1 + ROW, ROW], OUTER, inner))
    assert not never_meet(place([read], OUTER), place([PIVOT], OUTER))


def test_only_the_point_itself():
    data = tirx.decl_buffer((EXTENT,), "int32", "data")
    read = tirx.BufferLoad(data, [PIVOT])
    axes = (OUTER, Axis(COLUMN, const(0), const(EXTENT)))
    writing = place([PIVOT, PIVOT, COLUMN], *axes)
    assert is_same_point(place([PIVOT, read, COLUMN], *axes), writing)
    assert not is_same_point(place([PIVOT, read, 3 - COLUMN], *axes), writing)
    assert not is_same_point(place([read, PIVOT, 0], *axes), place([COLUMN, PIVOT, 0], *axes))


def random_place(generator):
    """An access in up to three loops, whose ranges depend on one another."""
    variables, axes = [], []
    for name in "abc"[: generator.randint(1, 3)]:
        around = generator.choice([*variables, None])
        low = generator.choice([const(0), const(1)] if around is None else [around, around + 1])
        extent = generator.choice([const(EXTENT) - low, const(generator.randint(1, 3))])
        variables.append(var(name))
        axes.append(Axis(variables[-1], low, extent))

    def index():
        choices = [*variables, const(generator.randint(0, EXTENT))]
        a, b = generator.choice(choices), generator.choice(choices)
        return generator.choice([a, a, a + 1, a + b, a - b, EXTENT - a])

    guards = ()
    if generator.random() < 0.4:
        a, b = index(), index()
        condition = generator.choice([a < b, a <= b, a.equal(b), tirx.NE(a, b)])
        guards = ((condition, generator.random() < 0.7),)
    return Place([index() for _ in range(2)], tuple(axes), guards)


def points(access):
    """The values of the loops at all points of an access, each with the element it touches."""

    def valued(expr, values):
        known = [(variable, const(value)) for variable, value in values.items()]
        return int(tvm.sym.Analyzer().simplify(substituted(expr, known)))

    def walk(axes, values):
        if not axes:
            if all(bool(valued(c, values)) == way for c, way in access.guards):
                yield tuple(values.values()), tuple(valued(i, values) for i in access.indices)
            return
        first, *others = axes
        low = valued(first.low, values)
        for value in range(low, low + valued(first.extent, values)):
            yield from walk(others, {**values, first.var: value})

    return list(walk(list(access.axes), {}))


@pytest.mark.parametrize("seed", range(60))
def test_random_accesses(seed):
    generator = random.Random(seed)
    reading = random_place(generator)
    # The same loops or others, whose variables may have the same names.
    writing = random_place(generator)
    if generator.random() < 0.7:
        writing = Place(list(reversed(reading.indices)), reading.axes, reading.guards)
    number = generator.randint(0, len(reading.axes)) if writing.axes is reading.axes else 0
    pairs = [
        (at, other)
        for (at, read), (other, written) in product(points(reading), points(writing))
        if read == written and at[:number] == other[:number]
    ]
    if never_meet(reading, writing, reading.axes[:number]):
        assert pairs == []
    if writing.axes is reading.axes and not number and is_same_point(reading, writing):
        assert all(at == other for at, other in pairs)


def test_random_accesses_are_told_apart():
    """Most that never meet are proved so; else the test above would show nothing."""
    proved = apart = 0
    for seed in range(60):
        generator = random.Random(seed)
        reading, writing = random_place(generator), random_place(generator)
        touched = {element for _, element in points(reading)}
        if touched.isdisjoint(element for _, element in points(writing)) and points(reading):
            apart += 1
            proved += never_meet(reading, writing)
    assert apart > 10
    assert proved > 0.5 * apart
