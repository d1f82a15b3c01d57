"""Tiles: they fit the registers and the axes, and vectors lie where they can be read."""

from dataclasses import replace

import pytest

from graphgrad.lower.cpu.contraction.tile import best_tile
from graphgrad.lower.cpu.tuning import Processor
from tests.labels import label
from tests.lower.cpu.contraction.stages import (
    Kernel,
    convolution,
    depthwise,
    product,
    weight_gradient,
)

WIDE = Processor(vector_bytes=64, registers=32)
UNITS = [WIDE, Processor(vector_bytes=32, registers=16), Processor(vector_bytes=16, registers=16)]
CASES = {
    "product": product(100, 96, 64),
    "prime product": product(101, 103, 107),
    "transposed product": product(64, 64, 64, flip_a=True, flip_b=True),
    "convolution": convolution(2, 14, 32, 48, 3),
    "weight gradient": weight_gradient(2, 9, 16, 20, 3),
    "depthwise": depthwise(2, 14, 32, 3),
}


def tile_of(built, unit=WIDE):
    kernel = Kernel(built)
    return best_tile(kernel.contraction, unit, kernel.result_store)


@pytest.mark.parametrize("unit", UNITS, ids=label)
@pytest.mark.parametrize("name", CASES)
def test_tiles_fit_the_registers(name, unit):
    tile = tile_of(CASES[name], unit)
    lanes = unit.vector_bytes // 4
    assert tile.lanes == lanes
    # Results, the vectors of one step, one broadcast element.
    assert tile.registers + tile.vectors + 1 < unit.registers
    assert tile.registers >= 4  # else the latency of additions shows
    assert tile.width <= tile.vector.extent


@pytest.mark.parametrize(
    ("built", "axis"),
    [
        (product(64, 64, 64), "v_j"),
        (product(64, 256, 64, flip=True), "v_i"),
        (convolution(2, 14, 32, 64, 3), "v_k"),
        (weight_gradient(2, 14, 32, 64, 3), "v_k"),
        (depthwise(2, 14, 32, 3), "v_c"),
    ],
    ids=label,
)
def test_vectors_lie_along_what_is_stored_contiguously(built, axis):
    assert str(tile_of(built).vector.var.name) == axis


def test_rows_divide_their_axes_if_that_is_nearly_as_good():
    ((_, length),) = tile_of(product(56, 64, 64)).rows
    assert 56 % length == 0
    assert length >= 7


def test_rows_of_primes_are_cut_evenly():
    ((_, length),) = tile_of(product(17, 64, 64)).rows
    assert -(-17 // length) * length <= 18


def test_narrow_results_use_part_of_a_register():
    assert tile_of(product(64, 10, 64)).lanes == 8
    assert tile_of(product(64, 4, 64)).lanes == 4


def test_what_would_be_read_once_is_not_copied():
    """A matrix times a vector: neighboring results are far apart in the matrix."""
    assert tile_of(product(512, 1, 64)) is None


def test_windows_that_overlap_are_not_copied():
    """The channels of the image are not contiguous, and each element is in nine windows."""
    kernel = Kernel(convolution(2, 9, 32, 1, 3))
    contraction = kernel.contraction
    factor = next(f for f in (0, 1) if contraction.depends(f, kernel.axis("n")))
    assert not contraction.can_be_copied(factor)
    assert contraction.can_be_copied(1 - factor)


@pytest.mark.parametrize("unit", UNITS, ids=label)
def test_short_sums_of_vectors_have_small_tiles(unit):
    """Their windows overlap most where a tile is as high as it is wide."""
    tile = tile_of(depthwise(2, 14, 32, 3), unit)
    assert tile.vectors == 1
    assert {str(axis.var.name): length for axis, length in tile.rows} == {"v_h": 2, "v_v": 2}


@pytest.mark.parametrize("unit", UNITS, ids=label)
def test_results_of_terms_with_conditions_are_on_the_stack(unit):
    kernel = Kernel(convolution(2, 14, 32, 64, 3))
    (row,) = (axis for axis in kernel.contraction.axes if str(axis.var.name) == "v_h")
    inside = replace(kernel.contraction, inside={0: (row.var - 1,)})
    tile = best_tile(inside, unit, kernel.result_store)
    assert tile.registers * unit.vector_bytes < 1024
