"""Values that a block keeps in local memory, as bindings in the expression that it stores.

Kernels of loops keep in local memory what a statement computes once and uses several times (see
`graphgrad.fallback.lowering.explicit_bindings`). A block with statements of its own is no stage,
which schedules could inline or vectorize; one that stores a single expression is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import SBlock
from tvm.s_tir.analysis import get_sblock_access_region

from ...fallback.lowering.explicit_bindings import drop_inner_regions, has_small_bindings
from ...fallback.walk import identity
from ...ir.kernel_rewrite import replace_block
from ...ir.kernel_structure import Load, is_among, is_conditional, statements_of
from ...ir.visits import nodes_in, replace_nodes


def bind_local_values(block: SBlock) -> SBlock:
    """A block that stores one expression, if it is one with values in local memory.

    It is the same block if it is of another form.
    """
    statements = statements_of(block.body)
    if block.init is not None or block.alloc_buffers or len(statements) < 2:
        return block
    local = [s.buffer for s in statements if isinstance(s, tirx.AllocBuffer)]
    *before, store = [s for s in statements if not isinstance(s, tirx.AllocBuffer)]
    if not local or not isinstance(store, tirx.BufferStore) or is_among(store.buffer, local):
        return block
    kept = [inner for outer in before for inner in nodes_in(outer, tirx.BufferStore)]
    if not all(is_among(inner.buffer, local) for inner in kept):
        return block
    value = _bound(before, store.value)
    if value is None:
        return block
    result = tirx.BufferStore(store.buffer, value, store.indices)
    if any(is_among(load.source, local) for load in nodes_in(result, Load)):
        return block
    if not has_small_bindings(value):
        return block
    return restate_regions(replace_block(block, body=result))


def restate_regions(block: SBlock) -> SBlock:
    """A block that says anew what it reads and writes, each buffer once."""
    accesses = nodes_in(block.body, (Load, tirx.BufferStore))
    buffers = [a.source if isinstance(a, Load) else a.buffer for a in accesses]
    plain = replace_block(block, reads=[], writes=[])
    reads, writes, _ = get_sblock_access_region(plain, {buffer: buffer for buffer in buffers})
    if block.init is not None:  # what a reduction adds to counts as written alone
        written = [region.source for region in writes]
        reads = [region for region in reads if not is_among(region.source, written)]
    bound = {identity(let.var) for let in nodes_in(block.body, prim.Let)}
    return drop_inner_regions(bound, replace_block(plain, reads=reads, writes=writes))


def _bound(statements: Sequence[Any], value: Any) -> Any | None:
    """An expression with what statements have kept for it; None where one is of another form."""
    for statement in reversed(statements):
        if isinstance(statement, tirx.BufferStore):
            value = _let(statement, value)
        elif isinstance(statement, tirx.IfThenElse) and statement.else_case is None:
            value = _bound_in_arms(statement, value)
        else:
            return None
        if value is None:
            return None
    return value


def _let(store: Any, value: Any) -> Any:
    """An expression in which what was stored is bound; put in where it is used once."""
    uses = [load for load in nodes_in(value, Load) if load.source.same_as(store.buffer)]
    if not uses:
        return value
    # A choice reads its condition once: with a variable in that place it would be no condition.
    var = tirx.Var(store.buffer.name, str(store.value.ty))
    put_in = store.value if len(uses) == 1 else var

    def replace(load: Any) -> Any:
        return put_in if load.source.same_as(store.buffer) else load

    value = replace_nodes(value, Load, replace)
    return value if len(uses) == 1 else prim.Let(var, store.value, value)


def _bound_in_arms(branch: Any, value: Any) -> Any | None:
    """An expression with what a branch has kept bound in the choices on the same condition."""
    negated = isinstance(branch.condition, tirx.Not)
    condition = branch.condition.a if negated else branch.condition
    kept = statements_of(branch.then_case)
    failed = False

    def replace(call: Any) -> Any:
        nonlocal failed
        if not is_conditional(call) or not tvm_ffi.structural_equal(call.args[0], condition):
            return call
        arms = [call.args[1], call.args[2]]
        arm = _bound(kept, arms[negated])
        if arm is None:
            failed = True
            return call
        arms[negated] = arm
        return tvm.ir.Call(call.op, [condition, *arms], attrs=call.attrs, ret_ty=call.ty)

    result = replace_nodes(value, tvm.ir.Call, replace)
    return None if failed else result
