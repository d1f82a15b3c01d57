"""Multi-output fusion: sibling reductions become one kernel, and what they share is read once.

Siblings are reductions over the same loops with a common input. `kernels/joint_reductions.py`
says which reductions are siblings, and makes one block of those that are in one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx

from ...ir.kernel_structure import is_among, stages
from ...ir.passes import Phase, compiler_pass
from ..kernels.inline_maps import MayRepeat, inline_maps
from ..kernels.joint_reductions import (
    PROCESSOR_LIMITS,
    BlockLimits,
    join_reductions,
    may_join,
)
from ..kernels.unique_bindings import schedule_of
from .entries import Call
from .joining import joined_calls
from .merge import MergedKernels, Part
from .side_by_side import side_by_side

_MAX_DISTANCE = 256
"""Bindings between two reductions that become one: a bound of the work, not of what pays."""


@compiler_pass(
    Phase.FUSED,
    because="the maps in front of a reduction are in its kernel then",
)
def fuse_siblings(
    mod: tvm.IRModule, may_repeat: MayRepeat, block_limits: BlockLimits = PROCESSOR_LIMITS
) -> tvm.IRModule:
    """Make one kernel of kernels that are sibling reductions.

    Parameters
    ----------
    mod : IRModule
    may_repeat : function
        Which maps a schedule will inline; see `inline_maps`.
    block_limits : BlockLimits
        How many reductions share a block, and of what.
    """
    kernels = MergedKernels(mod)
    siblings = _Siblings(kernels, may_repeat, block_limits)
    return kernels.in_blocks(
        lambda bindings: joined_calls(bindings, siblings.joint, kernels.builder, _MAX_DISTANCE)
    )


class _Siblings:
    """The kernels of a module that are reductions, and those made of several."""

    def __init__(self, kernels: MergedKernels, may_repeat: MayRepeat, block_limits: BlockLimits):
        self._kernels, self._may_repeat, self._limits = kernels, may_repeat, block_limits
        self._known: dict[Any, tirx.PrimFunc | None] = {}

    def joint(self, first: Call, second: Call, _: Callable[[Any], bool]) -> Call | None:
        """One call in the place of two, as `Join` says; None if they are no siblings."""
        results = [*first.results, *second.results]
        if len(results) > self._limits.results or any(
            is_among(argument, first.results) for argument in second.arguments
        ):
            return None
        reductions = self._reductions(first.kernel), self._reductions(second.kernel)
        if reductions[0] is None or reductions[1] is None:
            return None
        joined = side_by_side(
            Part(reductions[0], first.arguments),
            Part(reductions[1], second.arguments),
        )
        if len(_reduced(join_reductions(joined.kernel, self._limits))) != 1:
            return None
        name = self._kernels.add(joined.kernel, first.kernel, second.kernel)
        self._known[name] = joined.kernel
        return Call(name, joined.arguments, results, second.span)

    def _reductions(self, variable: Any) -> tirx.PrimFunc | None:
        """A kernel with its maps inlined that ends with its reduction, or is one of siblings.

        None if it is anything else.
        """
        if variable not in self._known:
            self._known[variable] = self._inlined(self._kernels[variable])
        return self._known[variable]

    def _inlined(self, func: Any) -> tirx.PrimFunc | None:
        if not isinstance(func, tirx.PrimFunc) or len(_reduced(func)) != 1:
            return None
        sch = schedule_of(func)
        # A map may remain behind the reduction: then the kernel is not only a reduction.
        last = inline_maps(sch, self._may_repeat)[-1]
        if not last.reduced or not may_join(last, self._limits.reads_bfloat):
            return None
        return func.with_body(sch.mod["main"].body)


def _reduced(func: tirx.PrimFunc) -> list[Any]:
    """The reductions among the stages of a kernel; none if it is not made of stages."""
    return [stage for stage in stages(func) or [] if stage.reduced]
