"""Convolutions by minimal filtering: the values, over awkward extents, and with maps behind."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.lower.cpu.schedule import schedule_loops
from graphgrad.lower.cpu.tuning import Processor, WinogradCosts
from graphgrad.lower.cpu.winograd import choice
from tests.lower.cpu.winograd import convolutions
from tests.lower.cpu.winograd.convolutions import (
    Layer,
    error,
    expression,
    is_filtered,
    reference,
    run,
    scheduled,
    values,
)
from tests.lower.kernel_programs import UNIT, tensor

KINDS = ["forward", "data", "weight"]

BOUND = 2e-6
"""Of the relative error: some twenty roundings, where a wrong tap or border would be of order 1."""

LAYERS = [
    Layer(1, 8, 8, 16, 16),
    Layer(2, 7, 7, 32, 32),
    Layer(3, 9, 5, 16, 48),
    Layer(5, 13, 4, 48, 16),
    Layer(1, 2, 2, 64, 32),
    Layer(7, 3, 17, 32, 16),
    Layer(2, 11, 8, 16, 32, (0, 0, 0, 0)),
    Layer(2, 11, 8, 16, 32, (1, 0, 0, 1)),
    Layer(2, 6, 8, 32, 16, (2, 2, 2, 2)),
    Layer(2, 10, 7, 32, 16, (0, 1, 2, 0)),
    Layer(2, 8, 8, 32, 256),
]


@pytest.fixture
def always(monkeypatch):
    """Minimal filtering wherever it is possible, also where it does not pay."""
    monkeypatch.setattr(choice, "_MAX_RELATIVE_COST", float("inf"))


def check(kind, layer, func=None):
    inputs, output = expression(kind, layer)
    func = func or scheduled(inputs, [output])
    assert is_filtered(func)
    arrays = values(inputs)
    expected = reference(kind, layer, *arrays)
    assert error(run(func, arrays, expected.shape), expected) < BOUND


def cases():
    """Yield all layers with large tiles, and some with small ones; the rest is slow."""
    for tile in (4, 2):
        for i, layer in enumerate(LAYERS):
            marks = [pytest.mark.slow] if tile == 2 and i % 3 else []
            yield pytest.param(layer, tile, marks=marks, id=f"{layer}-{tile}")


@pytest.mark.parametrize(("layer", "tile"), list(cases()))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("always")
def test_values(kind, layer, tile, monkeypatch):
    monkeypatch.setattr(choice, "_TILE_SIDES", (tile,))
    check(kind, layer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("always")
def test_blocks_of_rows_and_of_images(kind, monkeypatch):
    # Tiny caches: several blocks of each kind, and accumulated weights.
    tiny = WinogradCosts(max_whole_bytes=0, image_block_bytes=1 << 18, gradient_block_bytes=1 << 18)
    monkeypatch.setattr(convolutions, "UNIT", replace(UNIT, winograd=tiny))
    check(kind, Layer(4, 16, 16, 32, 32))
    check(kind, Layer(6, 4, 4, 32, 32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("always")
def test_other_vector_units(kind):
    inputs, output = expression(kind, Layer(2, 7, 7, 32, 16))
    built = te.create_prim_func([*inputs, output])
    for unit in (
        Processor(vector_bytes=32, registers=16),
        Processor(vector_bytes=16, registers=32),
    ):
        check(kind, Layer(2, 7, 7, 32, 16), schedule_loops(built, unit))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("always")
def test_a_map_behind_is_computed_with_each_tile(kind):
    layer = Layer(2, 7, 7, 32, 32)
    inputs, output = expression(kind, layer)
    added = tensor(*[int(extent) for extent in output.shape], name="added")
    behind = te.compute(
        output.shape, lambda *i: tirx.max(output(*i) + added(*i), tirx.const(0, "float32"))
    )
    func = scheduled([*inputs, added], [behind])
    assert is_filtered(func)
    arrays = values([*inputs, added])
    expected = np.maximum(reference(kind, layer, *arrays[:2]) + arrays[2], 0)
    assert error(run(func, arrays, expected.shape), expected) < BOUND
    stored = [line for line in func.script().splitlines() if line.strip().startswith("compute[")]
    assert len(stored) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_not_stored(kind):
    inputs, output = expression(kind, Layer(8, 28, 28, 64, 64))
    text = scheduled(inputs, [output]).script()
    assert "factors" in text
    assert not any("padded[" in line for line in text.splitlines())


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_the_same_each_time(kind):
    inputs, output = expression(kind, Layer(2, 14, 14, 64, 64))
    func, arrays = scheduled(inputs, [output]), values(inputs)
    shape = [int(extent) for extent in output.shape]
    assert (run(func, arrays, shape) == run(func, arrays, shape)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_it_can_be_switched_off(kind):
    inputs, output = expression(kind, Layer(8, 28, 28, 64, 64))
    assert is_filtered(scheduled(inputs, [output]))
    assert not is_filtered(scheduled(inputs, [output], winograd=False))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("always")
def test_factors_of_bfloat16_are_read_as_they_are(kind):
    layer = Layer(2, 11, 8, 16, 32, (1, 0, 0, 1))
    inputs, output = expression(kind, layer, "bfloat16", "float32")
    func = scheduled(inputs, [output])
    assert is_filtered(func)
    arrays = [array.astype("bfloat16") for array in values(inputs)]
    expected = reference(kind, layer, *arrays)
    bound = BOUND if str(output.dtype) == "float32" else 2**-8
    assert error(run(func, arrays, expected.shape), expected) < bound


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_dtypes_are_computed_directly(dtype):
    inputs, output = expression("forward", Layer(8, 28, 28, 64, 64), dtype)
    assert not is_filtered(scheduled(inputs, [output]))


@pytest.mark.parametrize(
    "layer",
    [Layer(0, 8, 8, 32, 32), Layer(4, 8, 8, 3, 32), Layer(4, 8, 8, 42, 32), Layer(4, 8, 8, 32, 6)],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("always")
def test_layers_that_are_not_served(kind, layer):
    inputs, output = expression(kind, layer)
    assert not is_filtered(scheduled(inputs, [output]))
