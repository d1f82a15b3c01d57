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
from ...ir.kernel_calls import bytes_of, drop_unused_kernels, map_dataflow_blocks
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
    builder = relax.BlockBuilder(mod)
    kernels = _Kernels(builder, mod)
    changed = map_dataflow_blocks(mod, kernels.without_unread, builder)
    return drop_unused_kernels(changed, kernels.replaced) if kernels.replaced else mod


class _Kernels:
    """The kernels of a module, and those that are made anew.

    Attributes
    ----------
    replaced : list of GlobalVar
        Kernels of replaced calls: they may be unused now.
    """

    def __init__(self, builder: relax.BlockBuilder, mod: tvm.IRModule):
        self._builder, self._mod = builder, mod
        self._merged = MergedKernels(builder)
        self.replaced: list[Any] = []

    def without_unread(self, bindings: list[Any]) -> list[Any]:
        """The bindings of a block, with calls that return only what is read."""
        entries = entries_of(bindings)
        read = frozenset[Any]().union(*(entry.reads for entry in entries))
        new: list[Any] = []
        for entry in entries:
            call = entry.call
            if call is not None and len(call.results) > 1:
                # What is no variable of the block may be read behind it.
                needed = [r in read or not isinstance(r, relax.DataflowVar) for r in call.results]
                call = self._call(call, needed)
            if call is None or call is entry.call:
                new += entry.bindings
            else:
                new += bindings_of(call, self._builder)
        return new

    def _call(self, call: Call, needed: list[bool]) -> Call:
        """A call of the kernel that returns what is needed; the same if that does not pay."""
        unread = [r for r, is_needed in zip(call.results, needed, strict=True) if not is_needed]
        if not any(needed) or sum(bytes_of(r.ty) or 0 for r in unread) < _MIN_BYTES:
            return call
        kernel = self._kernel(self._mod[call.kernel], len(call.arguments), needed)
        if kernel is None:
            return call
        self.replaced.append(call.kernel)
        results = [r for r, is_needed in zip(call.results, needed, strict=True) if is_needed]
        return replace(call, kernel=self._merged.add(kernel, call.kernel), results=results)

    @staticmethod
    def _kernel(func: Any, arguments: int, needed: list[bool]) -> tirx.PrimFunc | None:
        """The kernel that computes some results of another one; None if that has only loops."""
        program = kept_expressions(func) if isinstance(func, tirx.PrimFunc) else None
        if program is None or len(program.outputs) != len(needed):
            return None
        if len(program.parameters) != arguments + len(needed):
            return None
        outputs = [o for o, is_needed in zip(program.outputs, needed, strict=True) if is_needed]
        return kernel_of(program.parameters[:arguments], outputs)
