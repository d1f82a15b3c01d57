"""The loops around tiles: what is parallel, what is cut, what is copied."""

import math
from dataclasses import replace

import pytest

from graphgrad.lower.cpu.contraction import plan
from graphgrad.lower.cpu.tuning import ContractionCosts, Processor
from tests.labels import label
from tests.lower.cpu.contraction.stages import (
    Kernel,
    convolution,
    depthwise,
    product,
    weight_gradient,
)

UNIT = Processor(vector_bytes=64, registers=32)


def plan_of(built):
    kernel = Kernel(built)
    return plan(kernel.contraction, UNIT, kernel.result_store)


def trips(loops):
    return math.prod(loop.trips for loop in loops)


@pytest.mark.parametrize(
    "built",
    [
        product(128, 128, 4096),
        product(1000, 1000, 1000),
        convolution(8, 28, 128, 128, 3),
        weight_gradient(8, 28, 128, 128, 3),
        weight_gradient(8, 7, 512, 512, 3),
    ],
    ids=["long", "square", "convolution", "few weights", "many weights"],
)
def test_there_is_work_for_several_cores(built):
    chosen = plan_of(built)
    assert chosen.parallel
    assert trips(chosen.parts) * trips(chosen.tasks) >= 8


def test_small_contractions_run_on_one_core():
    assert not plan_of(product(32, 32, 32)).parallel


@pytest.mark.parametrize(
    ("built", "cut"),
    [
        (weight_gradient(8, 56, 64, 64, 3), True),
        (product(64, 64, 4096), True),
        (weight_gradient(8, 7, 512, 512, 3), False),
        (product(512, 512, 512), False),
        (convolution(8, 28, 64, 64, 3), False),
    ],
    ids=label,
)
def test_long_sums_of_few_results_are_cut_into_parts(built, cut):
    chosen = plan_of(built)
    assert bool(chosen.parts) == cut


def test_parts_go_through_the_larger_factor_once():
    """The smaller one stays in the cache meanwhile."""
    for channels, filters in ((64, 256), (256, 64)):
        built = Kernel(weight_gradient(8, 28, channels, filters, 1))
        chosen = plan(built.contraction, UNIT, built.result_store)
        long = [str(one.axis.var.name) for one in chosen.tiles if one.trips > 1]
        assert chosen.parts
        assert long == (["v_k", "v_c"] if filters > channels else ["v_c", "v_k"])


def test_parts_have_enough_terms():
    chosen = plan_of(product(64, 64, 4096))
    assert 4096 // trips(chosen.parts) >= 256


def test_panels_that_exceed_the_cache_are_read_in_blocks():
    chosen = plan_of(product(64, 2048, 1 << 15))
    (block,) = chosen.blocks
    assert block.step * chosen.width * 4 <= 1 << 20


def test_blocks_of_parts_have_a_bound_of_their_own():
    """All tiles of a part read both factors again, and what is near serves one panel."""
    near = ContractionCosts(near_bytes=1 << 20, part_bytes=3 << 16)
    unit = replace(UNIT, contraction=near)
    kernel = Kernel(weight_gradient(8, 28, 64, 64, 1))
    chosen = plan(kernel.contraction, unit, kernel.result_store)
    assert chosen.parts and chosen.blocks
    assert math.prod(loop.trips for loop in chosen.terms) * (64 + 64) * 4 <= 3 << 16
    kernel = Kernel(product(1024, 1024, 1024))
    assert plan(kernel.contraction, unit, kernel.result_store).blocks == ()


def test_windows_are_outside_and_long_sums_inside():
    chosen = plan_of(convolution(8, 14, 64, 64, 3))
    names = [str(loop.axis.var.name) for loop in chosen.terms]
    assert names[-1] == "v_c"
    assert set(names[:2]) == {"v_r", "v_s"}


def copied(built):
    kernel = Kernel(built)
    return [
        str(axis.var.name) for _, axis in plan(kernel.contraction, UNIT, kernel.result_store).packed
    ]


def test_what_is_copied():
    assert copied(product(128, 128, 128)) == []
    assert copied(product(2048, 2048, 2048)) == ["v_j"]  # lines collide
    assert copied(product(512, 512, 512)) == []  # and are not read often enough
    assert copied(product(256, 256, 256, flip_b=True)) == ["v_j"]  # vectors are not contiguous
    assert copied(product(1024, 1024, 1024, flip_a=True)) == ["v_i"]  # rows lie far apart
    assert copied(product(1024, 64, 1 << 15, flip_a=True)) == []  # but blocks are in the cache
    assert copied(convolution(8, 56, 64, 64, 3)) == []


@pytest.mark.parametrize("columns", [512, 1000, 1024, 2048])
def test_groups_of_panels_are_equal(columns):
    """Cores get neighboring tasks: if some took less time, so would one core's."""
    chosen = plan_of(product(512, columns, 512))
    groups = [one for one in chosen.tasks if one.axis is chosen.vector]
    panels = [one for one in chosen.tiles if one.axis is chosen.vector]
    assert trips(groups) * trips(panels) == -(-columns // chosen.width)
    assert trips(panels) * chosen.width * 512 * 4 <= 1 << 20


@pytest.mark.parametrize(("window", "unrolled"), [(3, 2), (5, 1), (7, 1)])
def test_windows_of_short_sums_are_unrolled_as_far_as_they_are_small(window, unrolled):
    assert plan_of(depthwise(2, 14, 32, window)).unrolled == unrolled


def test_long_sums_are_not_unrolled():
    assert plan_of(convolution(8, 14, 64, 64, 3)).unrolled == 0
    assert plan_of(product(128, 128, 128)).unrolled == 0
