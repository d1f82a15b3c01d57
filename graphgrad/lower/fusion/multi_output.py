"""Multi-output fusion: sibling reductions become one kernel, and what they share is read once.

Siblings are reductions over the same loops with a common input. `kernels/joint_reductions.py`
says which reductions are siblings, and makes one block of those that are in one kernel.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from ...ir.kernel_calls import (
    arguments_of,
    bytes_of,
    is_kernel_call,
    variables_of,
)
from ...ir.kernel_structure import Stage, stages
from ...ir.passes import Phase, compiler_pass
from ..kernels.inline_maps import inline_maps
from ..kernels.joint_reductions import are_siblings, may_join
from ..kernels.unique_bindings import schedule_of
from .merge import MergedKernels, Part
from .side_by_side import side_by_side

_MIN_SHARED_BYTES = 1 << 16
"""Bytes of a tensor from which on it is worth reading it one time less."""


@compiler_pass(
    Phase.FUSED,
    because="the maps in front of a reduction are in its kernel then",
)
def fuse_siblings(mod: tvm.IRModule, may_repeat: Any, reads_bfloat: bool = False) -> tvm.IRModule:
    """Make one kernel of kernels that are sibling reductions.

    Parameters
    ----------
    mod : IRModule
    may_repeat : function
        Which maps a schedule will inline; see `inline_maps`.
    reads_bfloat : bool
        As of `may_join`.
    """
    kernels = MergedKernels(mod)
    return kernels.in_blocks(_SiblingFusion(kernels, may_repeat, reads_bfloat).joined)


class _SiblingFusion:
    """Pairs of calls of sibling reductions, each replaced by one call."""

    def __init__(self, kernels: MergedKernels, may_repeat: Any, reads_bfloat: bool):
        self._kernels, self._may_repeat, self._reads_bfloat = kernels, may_repeat, reads_bfloat
        self._reductions: dict[Any, tuple[tirx.PrimFunc, Stage] | None] = {}

    def joined(self, bindings: list[Any]) -> list[Any]:
        """The bindings of a block with sibling reductions computed by one call."""
        bound_at = {binding.var: i for i, binding in enumerate(bindings)}
        first_use: dict[Any, int] = {}
        for i, binding in enumerate(bindings):
            for var in variables_of(binding.value):
                first_use.setdefault(var, i)
        # For each large tensor a reduction that reads it, for which a sibling may follow.
        last_reader: dict[Any, int] = {}
        replaced: dict[int, list[Any]] = {}
        for i, binding in enumerate(bindings):
            large = self._large_arguments(binding)
            earlier = next((last_reader[a] for a in large if a in last_reader), None)
            position = (
                None
                if earlier is None
                else self._joint_position(bindings, bound_at, first_use, earlier, i)
            )
            joint_bindings = (
                None
                if earlier is None or position is None
                else self._pair(bindings[earlier], binding)
            )
            if earlier is None or position is None or joint_bindings is None:
                last_reader.update(dict.fromkeys(large, i))
                continue
            replaced[earlier], replaced[i] = [], []
            replaced[position] = joint_bindings
            # Later pairs are judged by where these two are now.
            for moved in (bindings[earlier], binding):
                bound_at[moved.var] = position
                for var in variables_of(moved.value):
                    first_use[var] = min(first_use[var], position)
            # Neither of the two is there for a third: one call has taken their place.
            for argument in (*self._large_arguments(bindings[earlier]), *large):
                last_reader.pop(argument, None)
        return [new for i, binding in enumerate(bindings) for new in replaced.get(i, [binding])]

    def _large_arguments(self, binding: Any) -> list[Any]:
        """The large tensors that a reduction of one result reads; empty for another binding."""
        value = binding.value
        if not is_kernel_call(value) or not isinstance(value.ty, relax.TensorType):
            return []
        large = [
            argument
            for argument in arguments_of(value)
            if isinstance(argument, tvm.ir.Var)
            and (bytes_of(argument.ty) or 0) >= _MIN_SHARED_BYTES
        ]
        return large if large and self._reduction(value.args[0]) is not None else []

    def _reduction(self, variable: Any) -> tuple[tirx.PrimFunc, Stage] | None:
        """A kernel with its maps inlined, and its one reduction, which ends it.

        None if the kernel is not of this form.
        """
        if variable not in self._reductions:
            self._reductions[variable] = self._as_reduction(self._kernels[variable])
        return self._reductions[variable]

    def _as_reduction(self, func: Any) -> tuple[tirx.PrimFunc, Stage] | None:
        """A kernel in the form that `_reduction` describes; None if it has another one."""
        kernel_stages = stages(func) if isinstance(func, tirx.PrimFunc) else None
        if not kernel_stages or sum(bool(stage.reduced) for stage in kernel_stages) != 1:
            return None
        sch = schedule_of(func)
        # A map may remain behind the reduction: then the kernel is not only a reduction.
        inlined_stages = inline_maps(sch, self._may_repeat)
        if not inlined_stages[-1].reduced or not may_join(inlined_stages[-1], self._reads_bfloat):
            return None
        return func.with_body(sch.mod["main"].body), inlined_stages[-1]

    @staticmethod
    def _joint_position(
        bindings: list[Any],
        bound_at: dict[Any, int],
        first_use: dict[Any, int],
        first: int,
        second: int,
    ) -> int | None:
        """The position at which both of two calls may stand; None if there is none.

        The first may move down to the second if nothing reads its result until after the second;
        the second may move up to the first if all that it reads is computed before the first.
        """
        if first_use.get(bindings[first].var, len(bindings)) > second:
            return second
        if all(bound_at.get(var, -1) < first for var in variables_of(bindings[second].value)):
            return first
        return None

    def _pair(self, first: Any, second: Any) -> list[Any] | None:
        """The bindings of one call in place of two; None if these are no siblings."""
        kernel, arguments = self._joined_kernel(first.value, second.value)
        if kernel is None:
            return None
        variable = self._kernels.add(kernel, first.value.args[0], second.value.args[0])
        types = [first.value.ty, second.value.ty]
        call = relax.call_tir(variable, relax.Tuple(arguments), types)
        call = self._kernels.builder.normalize(call)
        results = relax.DataflowVar("sums", call.ty)
        items = []
        for index, binding in enumerate((first, second)):
            value = relax.TupleGetItem(results, index)
            items.append(relax.VarBinding(binding.var, value, binding.span))
        return [relax.VarBinding(results, call, first.span), *items]

    def _joined_kernel(self, first: Any, second: Any) -> tuple[tirx.PrimFunc | None, list[Any]]:
        """The kernel of two calls, and its arguments; None if they are no siblings."""
        first_reduction, second_reduction = (
            self._reduction(first.args[0]),
            self._reduction(second.args[0]),
        )
        assert first_reduction is not None and second_reduction is not None
        joined = side_by_side(
            Part(first_reduction[0], arguments_of(first)),
            Part(second_reduction[0], arguments_of(second)),
        )
        reductions = [stage for stage in stages(joined.kernel) or [] if stage.reduced]
        return (joined.kernel if are_siblings(*reductions) else None), joined.arguments
