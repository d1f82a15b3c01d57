"""Panels: their shape, the order in which they are filled, and with what."""

from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import SBlock, SBlockRealize

from graphgrad.lower.cpu.contraction import Loop, Plan, plan
from graphgrad.lower.cpu.contraction.frame import Frame
from graphgrad.lower.cpu.contraction.pack import filled, panels_of
from graphgrad.lower.cpu.tuning import Processor
from tests.guarded_memory import guarded_tensor
from tests.lower.cpu.contraction.stages import Kernel, convolution, product
from tests.lower.kernel_programs import HOST, tensor
from tests.running import compile_library

UNIT = Processor(vector_bytes=64, registers=32)


def panels(built, factor, name, **changes):
    """Return the panels of a factor along an axis, and the loops that fill them, by extent."""
    kernel = Kernel(built)
    chosen = plan(kernel.contraction, UNIT, kernel.result_store)
    changes = {key: tuple(make(kernel) for make in made) for key, made in changes.items()}
    chosen = replace(chosen, lanes=16, vectors=2, tasks=(), **changes)
    made = panels_of(Frame(kernel.contraction, chosen), factor, kernel.axis(name))
    nest = filled(kernel.contraction, chosen, made, tirx.ForKind.PARALLEL)
    loops = []
    tvm_ffi.structural_walk(nest, (tirx.For, loops.append), order="pre")
    return [int(n) for n in made.buffer.shape], loops


def filled_by(kernel, factor, name, given, lanes, vectors):
    """Return the panels of a factor along an axis, as they are filled from an array."""
    contraction, axis = kernel.contraction, kernel.axis(name)
    terms = tuple(Loop(one, 1, one.extent) for one in contraction.reduced)
    chosen = Plan(axis, lanes, vectors, (), (), (), (), (), terms)
    made = panels_of(Frame(contraction, chosen), factor, axis)
    nest = filled(contraction, chosen, made, tirx.ForKind.PARALLEL)
    root = SBlockRealize([], tirx.const(True, "bool"), SBlock([], [], [], "root", nest))
    func = tirx.PrimFunc([contraction.loads[factor].source, made.buffer], root)
    library = compile_library(func, HOST)
    shape = [int(n) for n in made.buffer.shape]
    result = guarded_tensor(np.full(shape, 77).astype(contraction.dtype))
    library["main"](guarded_tensor(given), result)
    return result.numpy()


def values(shape, dtype):
    """Return different numbers, as far as a dtype has them."""
    numbers = np.arange(np.prod(shape)).reshape(shape) % 1009
    return numbers.astype(dtype)


def tiles(given, width):
    """Return the panels of a matrix whose rows become columns; the last one ends where it does."""
    starts = [min(start, len(given) - width) for start in range(0, len(given), width)]
    return np.stack([given[start : start + width].T for start in starts])


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


def test_rows_of_the_source_are_transposed_square_by_square():
    """Along as many rows of memory as a square has, for all of their length."""
    _, loops = panels(product(64, 96, 64, flip_b=True), 1, "j")
    assert [int(loop.extent) for loop in loops] == [3 * 2, 4, 16, 16]  # panels and halves, squares
    assert loops[-1].kind == tirx.ForKind.VECTORIZED


def test_long_rows_are_cut_so_that_threads_share_them():
    _, loops = panels(product(64, 32, 2048, flip_b=True), 1, "j")
    assert [int(loop.extent) for loop in loops] == [2 * 4, 32, 16, 16]


def test_elements_without_neighbors_are_copied_in_the_order_of_the_source():
    _, loops = panels(product(64, 96, 3, flip_b=True), 1, "j")
    assert [int(loop.extent) for loop in loops] == [3, 32, 3]
    assert loops[-1].kind == tirx.ForKind.SERIAL


@pytest.mark.parametrize(("columns", "is_shared"), [(8000, False), (4800, True)])
def test_tasks_fill_the_panels_that_they_alone_read(columns, is_shared):
    """A vocabulary's weight is never copied whole. Few panels are read by several tasks."""
    kernel = Kernel(product(1024, columns, 768, flip_b=True))
    chosen = plan(kernel.contraction, UNIT, kernel.result_store)
    assert chosen.packed == ((1, kernel.axis("j")),)
    made = panels_of(Frame(kernel.contraction, chosen), *chosen.packed[0])
    held = int(made.buffer.shape[0]) * chosen.width
    if is_shared:
        assert held == columns
    else:
        assert held == chosen.tasks[-1].step < columns / 10


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("columns", [32, 45])
@pytest.mark.parametrize("terms", [1, 3, 4, 7, 16, 19, 600])
def test_transposed_panels(terms, columns, dtype):
    """Whole and ragged tiles; rows shorter than a square, of whole squares, and of several runs."""
    kernel = Kernel(product(64, columns, terms, flip_b=True, dtype=dtype))
    given = values((columns, terms), dtype)
    panel = filled_by(kernel, 1, "j", given, 16, 2)
    assert (panel.reshape(-1, terms, 32) == tiles(given, 32)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("columns", [32, 45])
@pytest.mark.parametrize("terms", [3, 16, 19])
def test_transposed_panels_of_narrow_floats(terms, columns, dtype):
    """They are read as such, and widened before they change places."""
    a, b = tensor(9, terms, dtype=dtype, name="a"), tensor(columns, terms, dtype=dtype, name="b")
    k = te.reduce_axis((0, tirx.IntImm("int64", terms)), "k")

    def element(i, j):
        return te.sum(a[i, k].astype("float32") * b[j, k].astype("float32"), axis=k)

    kernel = Kernel(([a, b], te.compute((9, columns), element, name="c")))
    given = values((columns, terms), dtype)
    panel = filled_by(kernel, 1, "j", given, 16, 2)
    assert panel.dtype == "float32"
    assert (panel == tiles(given, 32)).all()


@pytest.mark.parametrize("lanes", [4, 8])
def test_squares_are_no_wider_than_a_vector(lanes):
    given = values((3 * lanes, 21), "float32")
    kernel = Kernel(product(64, 3 * lanes, 21, flip_b=True))
    panel = filled_by(kernel, 1, "j", given, lanes, 3)
    assert (panel == given.T[None]).all()


@pytest.mark.parametrize("trailing", [1, 2])
def test_neighbors_behind_which_there_are_other_dimensions(trailing):
    """Of extent 1, they leave elements neighbors; otherwise these lie apart."""
    a, b = tensor(9, 20, name="a"), tensor(16, 20, trailing, 1, name="b")
    k = te.reduce_axis((0, 20), "k")
    c = te.compute((9, 16), lambda i, j: te.sum(a[i, k] * b[j, k, 0, 0], axis=k), name="c")
    given = values((16, 20, trailing, 1), "float32")
    panel = filled_by(Kernel(([a, b], c)), 1, "j", given, 16, 1)
    assert (panel == given[:, :, 0, 0].T[None]).all()


def test_neighbors_along_an_axis_of_the_result():
    a, b = tensor(18, 9, 5, name="a"), tensor(16, 5, 18, name="b")
    k = te.reduce_axis((0, 5), "k")
    c = te.compute((18, 9, 16), lambda n, i, j: te.sum(a[n, i, k] * b[j, k, n], axis=k), name="c")
    given = values((16, 5, 18), "float32")
    panel = filled_by(Kernel(([a, b], c)), 1, "j", given, 16, 1)
    assert (panel == given.transpose(2, 1, 0)[:, None]).all()
