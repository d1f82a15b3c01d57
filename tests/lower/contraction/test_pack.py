"""Panels: their shape, and the order in which they are filled."""

from dataclasses import replace

import tvm_ffi
from tvm import tirx

from graphgrad.lower.contraction import Loop, plan
from graphgrad.lower.contraction.pack import filled, panels_of
from graphgrad.lower.target import VectorUnit
from tests.lower.contraction.stages import Kernel, convolution, product

UNIT = VectorUnit(bytes=64, registers=32)


def panels(built, factor, name, **changes):
    """Return the panels of a factor along an axis, and the loops that fill them, by extent."""
    kernel = Kernel(built)
    chosen = plan(kernel.contraction, UNIT, kernel.sink)
    changes = {key: tuple(make(kernel) for make in made) for key, made in changes.items()}
    chosen = replace(chosen, lanes=16, vectors=2, **changes)
    made = panels_of(kernel.contraction, chosen, factor, kernel.axis(name))
    nest = filled(kernel.contraction, chosen, made, tirx.ForKind.PARALLEL)
    loops = []
    tvm_ffi.structural_walk(nest, (tirx.For, loops.append), order="pre")
    return [int(n) for n in made.buffer.shape], loops


def test_panels_have_the_order_of_the_terms():
    order = [lambda kernel, n=n, t=t: Loop(kernel.axis(n), 1, t) for n, t in (("s", 3), ("r", 3))]
    order.append(lambda kernel: Loop(kernel.axis("c"), 1, 20))
    shape, _ = panels(convolution(2, 9, 20, 70, 3), 1, "k", terms=order)
    assert shape == [3, 3, 3, 20, 32]


def test_contiguous_elements_are_copied_in_vectors():
    _, loops = panels(product(64, 64, 64), 1, "j")
    assert loops[-1].kind == tirx.ForKind.VECTORIZED
    assert loops[0].kind == tirx.ForKind.PARALLEL


def test_a_block_of_terms_is_copied_for_all_panels():
    """So that what a page of the source holds is read at once."""
    _, loops = panels(product(64, 96, 64), 1, "j")
    extents = [int(loop.extent) for loop in loops]
    assert extents == [4 * 3, 16, 32]  # blocks and panels, terms, columns


def test_distant_elements_are_copied_in_the_order_of_the_source():
    _, loops = panels(product(64, 96, 64, flip_b=True), 1, "j")
    assert [int(loop.extent) for loop in loops] == [4 * 3, 32, 16]
    assert loops[-1].kind == tirx.ForKind.SERIAL
