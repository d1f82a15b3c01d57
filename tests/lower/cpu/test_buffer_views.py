"""Stages restated over other axes, and what they store put where it belongs."""

import numpy as np
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir import Range
from tvm.s_tir import SBlock

from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.kernel_structure import Load, statements_of
from graphgrad.lower.cpu.buffer_views import BufferView, block_of, joined, replace_nests, restated
from tests.lower.kernel_programs import tensor


def doubled(extent):
    x = tensor(extent)
    return te.create_prim_func([x, te.compute((extent,), lambda i: x(i) * 2, name="y")])


def halves(func):
    """Restate the one stage of a kernel as one over its even elements, then one over its odd."""
    (nest,) = statements_of(func.body.block.body)
    block = block_of(nest)
    whole, (iterator,) = block.body.buffer, block.iter_vars
    nests, stand_ins = [], []
    for digit in (0, 1):
        var = tvm.ir.Var("half", iterator.var.ty)
        count = (int(iterator.dom.extent) - digit + 1) // 2
        extent = tirx.const(count, str(iterator.dom.extent.ty.dtype))
        dom = Range.from_min_extent(iterator.dom.min, extent)
        own = tirx.decl_buffer([extent], whole.dtype, "own")
        nests.append(
            restated(
                block,
                [(var, dom, tirx.IterVar.DataPar)],
                {iterator.var: var * 2 + digit},
                {whole: (own, lambda indices: [tirx.floordiv(indices[0], 2)])},
                f"half{digit}",
            )
        )
        stand_ins.append(
            BufferView(own, whole, lambda indices, digit=digit: [indices[0] * 2 + digit])
        )
    return replace_nests(func, nests, [one.buffer for one in stand_ins]), stand_ins


def buffers(body):
    """Return what a kernel accesses, and what its blocks say and hold."""
    accessed, regions, held = [], [], []

    def block(node):
        regions.extend(region.source for region in (*node.reads, *node.writes))
        held.extend(node.alloc_buffers)

    tvm_ffi.structural_walk(body, (tirx.BufferStore, lambda node: accessed.append(node.buffer)))
    tvm_ffi.structural_walk(body, (Load, lambda node: accessed.append(node.source)))
    tvm_ffi.structural_walk(body, (SBlock, block))
    return accessed, regions, held


def test_stages_store_to_buffers_of_their_own_until_they_are_joined():
    func = doubled(7)
    apart, stand_ins = halves(func)
    own = [one.buffer for one in stand_ins]
    (whole,) = {one.base for one in stand_ins}
    before, after = buffers(apart.body), buffers(joined(apart.body, stand_ins))
    assert all(any(o.same_as(b) for b in part) for o in own for part in before)
    assert not any(o.same_as(b) for o in own for part in after for b in part)
    assert any(whole.same_as(b) for b in after[0])
    assert any(whole.same_as(b) for b in after[1])


def test_values():
    func = doubled(7)
    apart, stand_ins = halves(func)
    same = apart.with_body(joined(apart.body, stand_ins))
    x, y = np.arange(7, dtype="float32"), to_tensor(np.full(7, 77, "float32"))
    tvm.compile(same, target="llvm")(to_tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), 2 * x)


def test_regions_cover_what_is_stored():
    func = doubled(7)
    apart, stand_ins = halves(func)
    for digit, nest in enumerate(statements_of(joined(apart.body, stand_ins).block.body)):
        block = block_of(nest)
        ((one,),) = [region.region for region in block.writes]
        assert tvm.sym.Analyzer().can_prove_equal(one.min, block.iter_vars[0].var * 2 + digit)
        assert int(tvm.sym.Analyzer().simplify(one.extent)) == 1


def test_a_stand_in_for_a_stand_in():
    """Those that were made later are joined first."""
    func = doubled(8)
    apart, stand_ins = halves(func)
    (even, odd) = stand_ins
    inner = tirx.decl_buffer([2, 2], "float32", "inner")
    rows = BufferView(inner, even.buffer, lambda indices: [indices[0] * 2 + indices[1]])

    def split(node):
        if not node.buffer.same_as(even.buffer):
            return node
        (i,) = node.indices
        return tirx.BufferStore(inner, node.value, [tirx.floordiv(i, 2), tirx.floormod(i, 2)])

    body = tvm_ffi.structural_map(apart.body, (tirx.BufferStore, split))
    same = apart.with_body(joined(body, [even, odd, rows]))
    x, y = np.arange(8, dtype="float32"), to_tensor(np.full(8, 77, "float32"))
    tvm.compile(same, target="llvm")(to_tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), 2 * x)


def test_nothing_to_join_changes_nothing():
    func = doubled(3)
    assert joined(func.body, []).same_as(func.body)


def test_whose_elements_are_where_they_would_be():
    own, whole = tirx.decl_buffer([4, 8, 5], "float32"), tirx.decl_buffer([32, 5], "float32")
    assert BufferView(own, whole, lambda i: [i[0] * 8 + i[1], i[2]]).keeps_addresses()
    half = tirx.decl_buffer([16, 5], "float32")
    assert not BufferView(half, whole, lambda i: [i[0] * 2, i[1]]).keeps_addresses()
