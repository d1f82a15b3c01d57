"""Copies inside a border of zeros: which may be done without."""

import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from graphgrad.fallback import create_prim_func
from graphgrad.ir.kernel_structure import buffer_of, stages
from graphgrad.lower.cpu.borders import borders_of, read_inside_borders
from graphgrad.lower.cpu.contraction import blocks_of
from tests.lower.kernel_programs import tensor


def padded(x):
    """Return ten elements inside zeros."""

    def element(i):
        inside = tirx.all(i >= 1, i < 11)
        return tirx.if_then_else(inside, x[i - 1], tirx.const(0, "float32"))

    return te.compute((12,), element, name="padded")


def borders(func):
    found = stages(func)
    internal = list(func.body.block.alloc_buffers)
    return borders_of(found, internal, blocks_of(func.body))


def test_what_a_kernel_copies_for_itself():
    x = tensor(10)
    copy = padded(x)
    doubled = te.compute((12,), lambda i: copy[i] * 2, name="doubled")
    func = create_prim_func([x, doubled])
    (border,) = borders(func).values()
    assert (border.stage, border.before) == ("padded", (1,))
    assert str(border.source.name) == "x"


def test_results_are_not_left_out():
    x = tensor(10)
    assert not borders(create_prim_func([x, padded(x)]))


@pytest.mark.parametrize("stored", [False, True])
def test_a_source_that_is_stored_to_later(stored):
    """The copy has what the source held before."""
    x = tensor(10)
    copy = padded(x)
    doubled = te.compute((12,), lambda i: copy[i] * 2, name="doubled")
    cleared = te.compute((10,), lambda i: tirx.const(0, "float32"), name="cleared")
    func = create_prim_func([x, doubled, cleared])
    if stored:
        first, _, last = func.params
        body = tvm_ffi.structural_map(
            func.body, (tvm.ir.Var, lambda var: first if var.same_as(last) else var)
        )
        func = func.with_body(body)
    assert bool(borders(func)) != stored


@pytest.mark.parametrize(("shift", "inside"), [(0, False), (1, True), (2, True), (3, False)])
def test_maps_that_never_read_a_border(shift, inside):
    x = tensor(10)
    copy = padded(x)
    doubled = te.compute((9,), lambda i: copy[i + shift] * 2, name="doubled")
    func = read_inside_borders(create_prim_func([x, doubled]))
    reads = stages(func)[1].loads
    assert all(str(buffer_of(load).name) == ("x" if inside else "padded") for load in reads)
