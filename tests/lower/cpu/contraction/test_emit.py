"""Nests of explicit plans: every way to cut the loops computes the same."""

from dataclasses import replace

import pytest

from graphgrad.lower.cpu.contraction import Loop, Plan
from tests.labels import label
from tests.lower.cpu.contraction.stages import Kernel, convolution, product, weight_gradient

TOLERANCE = 1e-6


def plan_of(kernel, lanes=8, vectors=1, rows=(), vector="j", **loops):
    """Return a plan; loops are given as (axis name, step, trips)."""
    named = {
        kind: tuple(Loop(kernel.axis(name), step, trips) for name, step, trips in given)
        for kind, given in loops.items()
        if kind != "packed"
    }
    packed = tuple((factor, kernel.axis(name)) for factor, name in loops.get("packed", ()))
    places = dict.fromkeys(("tasks", "parts", "blocks", "tiles", "terms"), ())
    rows = tuple((kernel.axis(name), length) for name, length in rows)
    return Plan(
        kernel.axis(vector), lanes, vectors, rows, packed=packed, parallel=True, **(places | named)
    )


@pytest.mark.parametrize("columns", [16, 19])
@pytest.mark.parametrize("rows", [1, 11])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("packed", [(), ((1, "j"),), ((0, "i"), (1, "j"))], ids=label)
def test_ragged_tiles(columns, rows, flip, packed):
    kernel = Kernel(product(rows, columns, 9, flip_a=True, flip=flip))
    plan = plan_of(
        kernel,
        vectors=2,
        rows=[("i", 3)],
        tasks=[("j", 16, -(-columns // 16))],
        tiles=[("i", 3, -(-rows // 3))],
        terms=[("k", 1, 9)],
        packed=packed,
    )
    assert kernel.error(plan) < TOLERANCE


@pytest.mark.parametrize("terms", [12, 13, 25])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(
    ("parts", "blocks", "length"),
    [([], [("k", 4, 7)], 4), ([("k", 7, 4)], [], 7), ([("k", 7, 4)], [("k", 3, 3)], 3)],
    ids=["blocks", "parts", "parts of blocks"],
)
def test_sums_that_are_cut_anywhere(terms, flip, parts, blocks, length):
    """The last block and the last part are shorter, and so is the last block of each part."""
    parts = [(name, step, -(-terms // step)) for name, step, _ in parts]
    blocks = blocks if parts else [(name, step, -(-terms // step)) for name, step, _ in blocks]
    kernel = Kernel(product(7, 19, terms, flip=flip))
    plan = plan_of(
        kernel,
        rows=[("i", 3)],
        parts=parts,
        tasks=[("j", 16, 2)],
        blocks=blocks,
        tiles=[("i", 3, 3), ("j", 8, 2)],
        terms=[("k", 1, length)],
    )
    assert kernel.error(plan) < TOLERANCE


@pytest.mark.parametrize("columns", [64, 61])
@pytest.mark.parametrize("flip_b", [False, True])
@pytest.mark.parametrize("flip", [False, True])
def test_panels_that_each_task_fills(columns, flip_b, flip):
    kernel = Kernel(product(5, columns, 9, flip_b=flip_b, flip=flip))
    plan = plan_of(
        kernel,
        tasks=[("j", 32, 2)],
        tiles=[("i", 1, 5), ("j", 8, 4)],
        terms=[("k", 1, 9)],
        packed=((1, "j"),),
    )
    assert kernel.error(plan) < TOLERANCE


@pytest.mark.parametrize("packed", [(), ((1, "j"),)], ids=label)
def test_groups_of_tiles_that_end_early(packed):
    kernel = Kernel(product(5, 40, 6))
    plan = plan_of(
        kernel,
        tasks=[("j", 16, 3)],
        tiles=[("i", 1, 5), ("j", 8, 2)],
        terms=[("k", 1, 6)],
        packed=packed,
    )
    assert kernel.error(plan) < TOLERANCE


def test_rows_along_two_axes_under_a_window():
    kernel = Kernel(convolution(2, 5, 3, 8, 3, step=2))
    plan = plan_of(
        kernel,
        vector="k",
        rows=[("h", 2), ("v", 3)],
        tasks=[("n", 1, 2), ("h", 2, 3)],
        tiles=[("v", 3, 2), ("k", 8, 1)],
        terms=[("s", 1, 3), ("r", 1, 3), ("c", 1, 3)],
        packed=[(1, "k")],
    )
    assert kernel.error(plan) < TOLERANCE


def test_a_sum_over_several_axes_in_parts():
    kernel = Kernel(weight_gradient(4, 5, 3, 8, 3))
    plan = plan_of(
        kernel,
        vector="k",
        rows=[("s", 3), ("c", 2)],
        parts=[("n", 2, 2)],
        blocks=[("p", 2, 3)],
        tiles=[("r", 1, 3), ("s", 3, 1), ("c", 2, 2), ("k", 8, 1)],
        terms=[("n", 1, 2), ("p", 1, 2), ("q", 1, 5)],
    )
    assert kernel.error(plan) < TOLERANCE


def test_serial_nests_stand_inside_parallel_loops():
    kernel = Kernel(product(4, 8, 4))
    loops = {"tasks": [("i", 1, 4)], "tiles": [("j", 8, 1)], "terms": [("k", 1, 4)]}
    parallel = plan_of(kernel, **loops)
    assert "T.parallel" in kernel.emitted(parallel).script()
    serial = Plan(**(vars(parallel) | {"parallel": False}))
    assert "T.parallel" not in kernel.emitted(serial).script()
    assert kernel.error(serial) < TOLERANCE


@pytest.mark.parametrize("unrolled", [0, 1, 2])
def test_unrolled_terms(unrolled):
    kernel = Kernel(convolution(1, 4, 3, 8, 3))
    loops = {
        "vector": "k",
        "rows": [("h", 2), ("v", 2)],
        "tasks": [("h", 2, 2)],
        "tiles": [("v", 2, 2)],
        "terms": [("c", 1, 3), ("r", 1, 3), ("s", 1, 3)],
    }
    plan = replace(plan_of(kernel, **loops), unrolled=unrolled)
    text = kernel.emitted(plan).script()
    assert text.count("in T.unroll(3)") == unrolled
    assert kernel.error(plan) < TOLERANCE
