"""The builder of loop nests."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import ForKind

from graphgrad.ir.loops import (
    block,
    ceil_div,
    fused,
    index,
    loop,
    nested,
    parallel,
    scratch,
    sequence,
    serial,
    store,
    unravel,
    variable,
)

SHAPE = (3, 4, 5)


def value_of(expression, values):
    bound = tvm_ffi.structural_map(expression, (tvm.ir.Var, lambda var: index(values[var.name])))
    return int(tvm.sym.Analyzer().simplify(bound))


@pytest.mark.parametrize("known", [(), (0, 1, 2), (1,), (2,), (0, 2)])
def test_numbers_of_points_are_those_of_numpy(known):
    names = ("a", "b", "c")
    extents = [n if i in known else variable(names[i]) for i, n in enumerate(SHAPE)]
    indices = unravel(variable("point"), extents)
    for point in range(np.prod(SHAPE)):
        values = {"point": point, **dict(zip(names, SHAPE, strict=True))}
        expected = [int(i) for i in np.unravel_index(point, SHAPE)]
        assert [value_of(i, values) for i in indices] == expected


def test_the_first_extent_is_not_divided_by():
    assert unravel(variable("point"), [index(0)])
    assert unravel(variable("point"), []) == []


def kinds(statement):
    found = []
    tvm_ffi.structural_walk(statement, (tirx.For, lambda one: found.append(int(one.kind))))
    return found[::-1]


@pytest.mark.parametrize(
    ("extents", "expected"),
    [
        ((3, 4), [ForKind.PARALLEL]),
        ((3, None), [ForKind.PARALLEL, ForKind.SERIAL]),
        ((), []),
    ],
    ids=["numbers", "symbolic", "none"],
)
def test_loops_become_one_where_numbers_are_known(extents, expected):
    around = [(variable(f"i{n}"), variable("n") if e is None else e) for n, e in enumerate(extents)]
    result = fused(around, tirx.Evaluate(index(0)), ForKind.PARALLEL)
    assert kinds(result) == list(map(int, expected))


def test_a_loop_of_one_trip_is_left_out_if_that_is_a_number_of_python():
    buffer = scratch("buffer", [1])
    body = nested([1, 1], lambda at: store(buffer, [at[0]], tirx.const(0, "float32")))
    assert isinstance(body, tirx.BufferStore)
    assert kinds(parallel(index(1), lambda _: body)) == [int(ForKind.PARALLEL)]
    assert serial(1, tirx.Evaluate).value == 0


def test_a_loop_starts_where_it_is_told_to():
    result = loop(variable("i", "int32"), 4, tirx.Evaluate(index(0)), start=2)
    assert (int(result.min), int(result.extent), str(result.extent.ty)) == (2, 4, "int32")


def test_statements_follow_each_other():
    one = tirx.Evaluate(index(1))
    assert sequence(one).same_as(one)
    assert len(sequence(one, one).seq) == 2
    assert int(sequence().value) == 0
    assert block("kept", one).block.body.same_as(one)


def test_steps_that_cover_an_extent():
    assert [ceil_div(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert value_of(ceil_div(variable("n"), 4), {"n": 5}) == 2
