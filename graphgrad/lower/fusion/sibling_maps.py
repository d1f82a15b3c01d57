"""Sibling maps: kernels that call the same functions at the same points become one kernel.

`cpu/joint_nests.py` says which maps are siblings, and makes one loop nest of them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import tvm
from tvm import tirx

from ...ir.kernel_structure import Stage, is_among, stages
from ...ir.passes import Phase, compiler_pass
from ..cpu.joint_nests import share_functions
from ..cpu.map import SMALL
from ..cpu.vector_math import FUNCTIONS
from ..kernels.inline_maps import MayRepeat, inline_maps
from ..kernels.unique_bindings import schedule_of
from .entries import Call
from .joining import joined_calls
from .merge import MergedKernels, Part
from .side_by_side import side_by_side

_MAX_DISTANCE = 4
"""Bindings between two maps that become one: what the one reads or makes lives longer."""

_MAX_RESULTS = 4
"""Maps of one kernel: all that they keep is in registers."""


@compiler_pass(
    Phase.FUSED,
    targets=("llvm",),
    after={"fuse_rowwise": "what goes by rows shares more with other kernels of the same rows"},
)
def fuse_maps(mod: tvm.IRModule, may_repeat: MayRepeat) -> tvm.IRModule:
    """Make one kernel of kernels that are sibling maps.

    Parameters
    ----------
    mod : IRModule
    may_repeat : function
        Which maps a schedule will inline; see `inline_maps`.
    """
    kernels = MergedKernels(mod)
    maps = _Maps(kernels, may_repeat)
    return kernels.in_blocks(
        lambda bindings: joined_calls(bindings, maps.joint, kernels.builder, _MAX_DISTANCE)
    )


class _Maps:
    """The kernels of a module that are maps, and those made of several."""

    def __init__(self, kernels: MergedKernels, may_repeat: MayRepeat):
        self._kernels, self._may_repeat = kernels, may_repeat
        self._known: dict[Any, tirx.PrimFunc | None] = {}

    def joint(self, first: Call, second: Call, _: Callable[[Any], bool]) -> Call | None:
        """One call in the place of two, as `Join` says; None if they are no siblings."""
        maps = self._maps(first.kernel), self._maps(second.kernel)
        results = [*first.results, *second.results]
        reads_result = any(is_among(a, first.results) for a in second.arguments)
        if None in maps or reads_result or len(results) > _MAX_RESULTS:
            return None
        joined = side_by_side(
            Part(maps[0], first.arguments),
            Part(maps[1], second.arguments),
        )
        if not all(share_functions(*pair) for pair in pairwise(stages(joined.kernel) or [])):
            return None
        name = self._kernels.add(joined.kernel, first.kernel, second.kernel)
        self._known[name] = joined.kernel
        return Call(name, joined.arguments, results, second.span)

    def _maps(self, variable: Any) -> tirx.PrimFunc | None:
        """A kernel with its maps inlined, of which each that is left is a result.

        None if it is anything else, or has no functions that may be shared.
        """
        if variable not in self._known:
            self._known[variable] = self._inlined(self._kernels[variable])
        return self._known[variable]

    def _inlined(self, func: Any) -> tirx.PrimFunc | None:
        kernel_stages = (stages(func) or []) if isinstance(func, tirx.PrimFunc) else []
        if not _are_maps(kernel_stages) or not any(s.calls & FUNCTIONS for s in kernel_stages):
            return None
        sch = schedule_of(func)
        stores = [store for stage in inline_maps(sch, self._may_repeat) for store in stage.stores]
        is_whole = all(is_among(store.buffer, func.params) for store in stores)
        return func.with_body(sch.mod["main"].body) if is_whole else None


def _are_maps(kernel_stages: list[Stage]) -> bool:
    """Whether stages are maps that are scheduled in vectors, if anything is."""
    return all(
        not stage.reduced and not stage.conditional and stage.work >= SMALL
        for stage in kernel_stages
    )
