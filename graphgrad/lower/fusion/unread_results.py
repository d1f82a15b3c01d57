"""Results of kernels that nothing reads: the kernel is made anew without them.

What several gradients share is one kernel with all that any of them may read, such as the states of
a loop backwards. Where a gradient is not asked for, as that of a constant first state, its states
need no tensor of all times: those that only the next step reads are kept in a few rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
from tvm import relax, tirx

from ...fallback.kernels.expressions import kept_expressions, kernel_of
from ...ir.kernel_calls import bytes_of
from ...ir.passes import Phase, compiler_pass
from .entries import Call, bindings_of, entries_of
from .merge import MergedKernels

_MIN_BYTES = 1 << 16
"""Bytes of unread results from which on it is worth making a kernel anew."""


@compiler_pass(
    Phase.FUSED,
    before={"fuse_siblings": "kernels that it joins are not what their expressions say any more"},
)
def drop_unread_results(mod: tvm.IRModule) -> tvm.IRModule:
    """Have kernels that carry their tensor expressions return only what something reads."""
    kernels = MergedKernels(mod)
    return kernels.in_blocks(lambda bindings: _without_unread(bindings, kernels))


def _without_unread(bindings: list[Any], kernels: MergedKernels) -> list[Any]:
    """The bindings of a block, with calls that return only what is read."""
    entries = entries_of(bindings)
    read = frozenset[Any]().union(*(entry.reads for entry in entries))
    new: list[Any] = []
    for entry in entries:
        call = entry.call
        if call is not None and len(call.results) > 1:
            # What is no variable of the block may be read behind it.
            needed = [r in read or not isinstance(r, relax.DataflowVar) for r in call.results]
            call = _call(call, needed, kernels)
        if call is None or call is entry.call:
            new += entry.bindings
        else:
            new += bindings_of(call, kernels.builder)
    return new


def _call(call: Call, needed: list[bool], kernels: MergedKernels) -> Call:
    """A call of the kernel that returns what is needed; the same if that does not pay."""
    unread = [r for r, is_needed in zip(call.results, needed, strict=True) if not is_needed]
    if not any(needed) or sum(bytes_of(r.ty) or 0 for r in unread) < _MIN_BYTES:
        return call
    kernel = _kernel(kernels[call.kernel], len(call.arguments), needed)
    if kernel is None:
        return call
    results = [r for r, is_needed in zip(call.results, needed, strict=True) if is_needed]
    return replace(call, kernel=kernels.add(kernel, call.kernel), results=results)


def _kernel(func: Any, arguments: int, needed: list[bool]) -> tirx.PrimFunc | None:
    """The kernel that computes some results of another one; None if that has only loops."""
    program = kept_expressions(func) if isinstance(func, tirx.PrimFunc) else None
    if program is None or len(program.outputs) != len(needed):
        return None
    if len(program.parameters) != arguments + len(needed):
        return None
    outputs = [o for o, is_needed in zip(program.outputs, needed, strict=True) if is_needed]
    return kernel_of(program.parameters[:arguments], outputs)
