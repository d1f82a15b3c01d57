"""What tiles fetch for the next ones."""

import re
from dataclasses import replace

import pytest
import tvm

from graphgrad.lower.cpu.contraction import plan
from graphgrad.lower.cpu.contraction.prefetch import next_tile_loop
from graphgrad.lower.cpu.tuning import ZEN4, processor_of
from graphgrad.lower.target import target
from tests.labels import label
from tests.lower.cpu.contraction.stages import (
    Kernel,
    convolution,
    depthwise,
    product,
    weight_gradient,
)

UNIT = ZEN4


def plan_of(kernel):
    return plan(kernel.contraction, UNIT, kernel.result_store)


@pytest.mark.parametrize(
    ("built", "fetches"),
    [
        (convolution(2, 28, 64, 64, 1), True),
        (convolution(2, 28, 64, 64, 3, step=2), True),
        (product(256, 128, 128), True),
        (convolution(2, 28, 16, 64, 1), False),  # what a row has is in one line
        (product(128, 128, 128, flip_a=True), False),  # the sum goes across lines
        (weight_gradient(2, 28, 64, 64, 1), False),
        (depthwise(2, 14, 32, 3), False),  # both factors are read in vectors
    ],
    ids=label,
)
def test_rows_that_lie_in_lines_are_fetched_ahead(built, fetches):
    chosen = plan_of(Kernel(built))
    assert (chosen.fetched is not None) == fetches
    if fetches:
        lines, line = chosen.terms[-2:]
        assert (lines.axis, lines.step, line.trips) == (line.axis, line.trips, 16)


@pytest.mark.parametrize(
    ("built", "streamed"),
    [
        (weight_gradient(8, 28, 64, 128, 1), {0, 1}),
        (product(64, 64, 4096, flip_a=True), {0, 1}),
        (product(64, 64, 4096), {1}),  # rows of the first lie along the sum
        (product(256, 256, 256, flip_a=True), set()),  # the sum is not cut
        (convolution(2, 28, 64, 64, 1), set()),
        (depthwise(2, 14, 32, 3), set()),
    ],
    ids=label,
)
def test_cut_sums_fetch_later_terms_of_factors_that_they_go_through_line_by_line(built, streamed):
    chosen = plan_of(Kernel(built))
    assert set(chosen.streamed) == streamed
    assert not streamed or chosen.accumulates


def test_one_line_is_fetched_for_neighbors_and_for_each_vector():
    kernel = Kernel(weight_gradient(8, 28, 64, 128, 1))
    chosen = replace(plan_of(kernel), fetched=None)
    assert chosen.rows[0][0] is kernel.axis("c")
    text = kernel.emitted(chosen).script()
    around = [line.strip() for line in text.splitlines() if "prefetch" in line or "for " in line]
    fetches = [place for place, line in enumerate(around) if "prefetch" in line]
    assert len(fetches) == 2
    assert f"in T.unroll({chosen.vectors})" in around[fetches[1] - 1]
    assert "in T.unroll" not in around[fetches[0] - 1]


def test_the_next_tile_is_that_of_the_innermost_loop_over_rows():
    kernel = Kernel(convolution(2, 28, 64, 64, 1))
    chosen = plan_of(kernel)
    following = next_tile_loop(kernel.contraction, chosen, chosen.fetched)
    assert following.axis.var.same_as(chosen.rows[-1][0].var)


def test_a_single_row_of_tiles_has_no_next_one():
    kernel = Kernel(convolution(2, 28, 64, 64, 1))
    chosen = plan_of(kernel)
    rows = (*chosen.tasks, *chosen.tiles)
    alone = replace(chosen, tasks=(), tiles=tuple(x for x in rows if x.axis is chosen.vector))
    assert next_tile_loop(kernel.contraction, alone, chosen.fetched) is None


def test_the_code_fetches_and_holds_the_tile_in_registers():
    """A call in a loop keeps what is on the heap from becoming registers."""
    kernel = Kernel(convolution(2, 28, 64, 64, 1))
    func = kernel.emitted(plan_of(kernel)).with_attr("global_symbol", "main")
    zen = target({"kind": "llvm", "mcpu": "znver4", "mtriple": "x86_64-linux-gnu"})
    assert processor_of(zen) == UNIT
    assembly = tvm.compile(func, target=zen).mod.inspect_source("asm")
    assert "vfmadd" in assembly
    blocks = re.split(r"^\S+:", assembly, flags=re.MULTILINE)
    innermost = max(blocks, key=lambda block: block.count("vfmadd"))
    loop = innermost[: innermost.rindex("vfmadd")]
    assert not re.search(r"vmov\w+\s+%[xyz]mm\d+, .*\(", loop)  # a store of a vector
    assert "prefetch" in assembly


@pytest.mark.parametrize(
    ("built", "fetches"),
    [
        (product(1024, 512, 32), True),
        (product(1021, 515, 24), True),
        (convolution(4, 56, 24, 144, 1), True),
        (product(64, 512, 32), False),  # what it stores stays in the cache
        (product(1024, 512, 512), False),  # its sums take longer than any line
        (product(1024, 512, 8), False),  # they are over before a line has come
        (depthwise(8, 56, 96, 3), False),
        (weight_gradient(8, 28, 64, 128, 1), False),  # partial sums are stored elsewhere
    ],
    ids=label,
)
def test_short_sums_fetch_the_lines_that_they_are_stored_to(built, fetches):
    kernel = Kernel(built)
    chosen = plan_of(kernel)
    assert chosen.fetches_results == fetches
    if fetches:
        without = replace(chosen, fetches_results=False)
        texts = [kernel.emitted(each).script().count("prefetch") for each in (chosen, without)]
        assert texts[0] == texts[1] + 1
        assert kernel.error(chosen) < 1e-5
