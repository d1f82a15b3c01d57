"""Calls of kernels in a Relax function: their arguments, their sizes, and unused kernels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import tvm
from tvm import relax

from ..tvm_fixes.hooks import array_item, array_size
from .calls import calls_op
from .rewrite import map_functions, rebuilt, replace_body
from .tensor import bits, has_shape
from .visits import nodes_in

KERNEL_OF_COPY = "graphgrad.copy"
"""Attribute of a kernel that copies: lowering must not take it for a view of its argument."""

RUNS_ON_HOST = "graphgrad.runs_on_host"
"""Attribute of a kernel of a device's program that is meant for the host: it compares addresses."""

RECOMPUTABLE = "graphgrad.recomputable"
"""Attribute of a map that may be computed in each of its readers, whatever its expressions are."""

BROADCAST_PATTERN = 1
"""TVM's ``kBroadcast``, the kind of maps that its fusion puts in front of reductions."""

INJECTIVE_PATTERN = 2
"""One of TVM's kinds of kernels (`OpPatternKind`), which are ordered: elementwise, broadcast,
injective, reduction, and above them what stores through an epilogue (2 to 4 of 8). TVM's fusion
puts maps into kernels up to a reduction."""

ALLOCATION = "relax.builtin.alloc_tensor"
"""The op that allocates what a kernel or a packed function writes its result to."""

REDUCTION_PATTERN = 3
"""TVM's ``kCommReduce``, the kind of reductions: maps in front of them go into their kernels."""

OPAQUE_PATTERN = 8
"""TVM's ``kOpaque``, the kind of kernels that are fused with nothing; also of those without one."""


def is_kernel_call(value: Any) -> bool:
    """Whether a value is a `call_tir` without symbolic arguments."""
    return (
        calls_op(value, "relax.call_tir")
        and array_size(value.args) == 2
        and isinstance(array_item(value.args, 1), relax.Tuple)
    )


def arguments_of(call: Any) -> list[Any]:
    """The tensors that a kernel is called with, without its outputs."""
    return list(array_item(call.args, 1).fields)


def variables_of(value: Any) -> list[Any]:
    """The Relax variables that an expression reads, each as often as it does."""
    return nodes_in(value, tvm.ir.Var)


def uses_in(func: relax.Function) -> Counter[Any]:
    """The number of reads of each variable in a function."""
    counts: Counter[Any] = Counter()
    values = [binding.value for block in func.body.blocks for binding in block.bindings]
    for value in (*values, func.body.body):
        counts.update(variables_of(value))
    return counts


def bytes_of(ty: Any) -> int | None:
    """The size in bytes of a tensor, or of all of a tuple; None if it is not a constant."""
    if isinstance(ty, relax.TupleType):
        sizes = [bytes_of(field) for field in ty.fields]
        return None if None in sizes else sum(sizes)  # type: ignore[arg-type]
    if not has_shape(ty):
        return None
    extents = list(ty.shape.values)
    if not all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
        return None
    return math.prod(map(int, extents)) * bits(str(ty.dtype)) // 8


def map_dataflow_blocks(
    mod: tvm.IRModule,
    change: Callable[[list[Any]], list[Any]],
    builder: relax.BlockBuilder | None = None,
) -> tvm.IRModule:
    """A module with the bindings of each dataflow block changed.

    Parameters
    ----------
    mod : IRModule
        It is not changed.
    change : callable
        From the bindings of a block to its new ones.
    builder : BlockBuilder, optional
        As of `map_functions`.
    """

    def changed(block: Any) -> list[Any]:
        if not isinstance(block, relax.DataflowBlock):
            return [block]
        return [relax.DataflowBlock(change(list(block.bindings)), block.span)]

    return map_functions(
        mod, lambda _, func: replace_body(func, rebuilt(func.body, block=changed)), builder
    )


def drop_unused_kernels(mod: tvm.IRModule, candidates: Iterable[Any]) -> tvm.IRModule:
    """The module without those of the candidates that nothing calls any more."""
    functions = mod.functions.values()
    called = {g.name_hint for func in functions for g in nodes_in(func, tvm.ir.GlobalVar)}
    unused = {candidate.name_hint for candidate in candidates} - called
    remaining = {v: f for v, f in mod.functions.items() if v.name_hint not in unused}
    return tvm.IRModule(remaining, attrs=mod.attrs, global_infos=mod.global_infos)
