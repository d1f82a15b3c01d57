"""Whether a kernel may write an output over one of its inputs, and the kernel that does so."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym.iter_affine_map import IterMapLevel

from .structure import Load, sequence, static


def may_overwrite(kernel: tirx.PrimFunc, donated: Any, output: Any) -> bool:
    """Return whether `output` may live in the memory of `donated`, both parameters of `kernel`.

    It may if every element is written once, by a block that has no more to read of the input than
    that element, and if nothing reads the input after that block's loops.
    """
    if not isinstance(kernel.body, SBlockRealize):
        return False
    statements = sequence(kernel.body.block.body)
    writers = [i for i, s in enumerate(statements) if _stores(s, output)]
    if len(writers) != 1 or not _is_only_loaded(kernel, donated):
        return False
    here = writers[0]
    store = _elementwise_store(statements[here])
    if store is None or _loads(statements[here], output):
        return False
    return (
        all(_same_indices(load, store) for load in _loads(statements[here], donated))
        and not any(_loads(s, donated) for s in statements[here + 1 :])
        and not any(_loads(s, output) for s in statements[:here])
    )


def overwriting(kernel: tirx.PrimFunc, shared: dict[Any, Any]) -> tirx.PrimFunc:
    """Return the kernel with each output of `shared` replaced by its input, as one parameter.

    Two parameters that share memory would break the promise that none overlap, by which the code
    generator reorders reads and writes.
    """
    body = tvm_ffi.structural_map(kernel.body, (tvm.ir.Var, lambda var: shared.get(var, var)))
    params = [param for param in kernel.params if param not in shared]
    return tirx.PrimFunc(params, body, kernel.ret_type, attrs=kernel.attrs)


def _elementwise_store(statement: Any) -> Any | None:
    """Return the store of a loop nest that stores each element exactly once, else None."""
    found = _guarded_nest(statement)
    if found is None:
        return None
    loops, condition, realize = found
    block = realize.block
    store = block.body
    if not isinstance(store, tirx.BufferStore) or block.init is not None or block.match_buffers:
        return None
    long = [v.var for v in block.iter_vars if static(v.dom.extent) != 1]
    indexed = [index for index in store.indices if isinstance(index, tvm.ir.Var)]
    each_once = all(sum(index.same_as(var) for index in indexed) == 1 for var in long)
    return store if each_once and _runs_once_per_point(loops, condition, realize) else None


def _guarded_nest(statement: Any) -> tuple[list[Any], Any, SBlockRealize] | None:
    """Return the loops around a block, the condition under which it runs, and the block.

    The threads of a GPU come in whole blocks: those beyond the last element do nothing.
    """
    loops = []
    condition = tirx.const(True, "bool")
    while isinstance(statement, tirx.For | tirx.IfThenElse):
        if isinstance(statement, tirx.For):
            loops.append(statement)
            statement = statement.body
        elif statement.else_case is None:
            condition = tirx.And(condition, statement.condition)
            statement = statement.then_case
        else:
            return None
    if not isinstance(statement, SBlockRealize) or static(statement.predicate) != 1:
        return None
    return loops, tvm.sym.Analyzer().simplify(condition), statement


def _runs_once_per_point(loops: list[Any], condition: Any, realize: SBlockRealize) -> bool:
    """Return whether the loops drive the block over its domain without repetition."""
    values = list(realize.iter_values)
    if len(values) == len(loops) and all(
        value.same_as(loop.loop_var) for value, loop in zip(values, loops, strict=True)
    ):
        return True
    domain = {loop.loop_var: tvm.ir.Range.from_min_extent(loop.min, loop.extent) for loop in loops}
    bijection = tvm.sym.detect_iter_map(
        values, domain, condition, check_level=IterMapLevel.Bijective
    )
    return len(bijection.indices) > 0


def _is_only_loaded(kernel: tirx.PrimFunc, buffer: Any) -> bool:
    """Return whether a buffer is only loaded from: not stored to, its address not taken."""
    mentions = 0
    regions = 0
    matched = False

    def visit(node: Any) -> None:
        nonlocal mentions, regions, matched
        if isinstance(node, tvm.ir.Var):
            mentions += node.same_as(buffer)
        elif isinstance(node, tvm.ir.TensorRegion):
            regions += node.source.same_as(buffer)
        elif isinstance(node, SBlock):
            matched = matched or bool(node.match_buffers)

    tvm_ffi.structural_walk(kernel.body, visit)
    return not matched and mentions == regions + len(_loads(kernel.body, buffer))


def _loads(node: Any, buffer: Any) -> list[Any]:
    found: list[Any] = []

    def visit(load: Any) -> None:
        if load.source.same_as(buffer):
            found.append(load)

    tvm_ffi.structural_walk(node, (Load, visit))
    return found


def _stores(node: Any, buffer: Any) -> list[Any]:
    found: list[Any] = []

    def visit(store: Any) -> None:
        if store.buffer.same_as(buffer):
            found.append(store)

    tvm_ffi.structural_walk(node, (tirx.BufferStore, visit))
    return found


def _same_indices(load: Any, store: Any) -> bool:
    return len(load.indices) == len(store.indices) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(load.indices, store.indices, strict=True)
    )
