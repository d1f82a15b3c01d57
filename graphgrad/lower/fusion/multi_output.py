"""Kernels that are sibling reductions, as one kernel: what they both read is read once.

`kernels/joint_reductions.py` says which reductions are siblings, and makes one block of those that
one kernel has.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import Schedule

from ...ir.kernel_calls import (
    arguments_of,
    bytes_of,
    drop_unused_kernels,
    is_kernel_call,
    map_dataflow_blocks,
    variables_of,
)
from ...ir.kernel_structure import Stage, stages
from ...ir.passes import Phase, compiler_pass
from ..kernels.inline_maps import inline_maps
from ..kernels.joint_reductions import are_siblings, may_join
from .merge import Part
from .side_by_side import side_by_side

_MIN_SHARED_BYTES = 1 << 16
"""Bytes of a tensor that is worth reading once less."""


@compiler_pass(
    Phase.FUSED,
    targets=("llvm",),
    because="the maps in front of a reduction are in its kernel then",
)
def fuse_siblings(mod: tvm.IRModule, may_repeat: Any) -> tvm.IRModule:
    """Make one kernel of kernels that are sibling reductions.

    Parameters
    ----------
    mod : IRModule
    may_repeat : function
        Which maps a schedule will inline; see `inline_maps`.
    """
    builder = relax.BlockBuilder(mod)
    joining = _SiblingFusion(builder, mod, may_repeat)
    changed = map_dataflow_blocks(mod, joining.joined, builder)
    return drop_unused_kernels(changed, joining.replaced) if joining.made else mod


class _SiblingFusion:
    """Pairs of kernel calls on the way into one call.

    Attributes
    ----------
    made : list of (GlobalVar, PrimFunc)
        New kernels.
    replaced : list of GlobalVar
        Kernels that fewer calls call.
    """

    def __init__(self, builder: relax.BlockBuilder, mod: tvm.IRModule, may_repeat: Any):
        self._builder, self._mod, self._may_repeat = builder, mod, may_repeat
        self.made: list[tuple[Any, tirx.PrimFunc]] = []
        self.replaced: list[Any] = []
        self._reductions: dict[Any, tuple[tirx.PrimFunc, Stage] | None] = {}

    def joined(self, bindings: list[Any]) -> list[Any]:
        """The bindings of a block with sibling reductions computed by one call."""
        at = {binding.var: i for i, binding in enumerate(bindings)}
        first_use: dict[Any, int] = {}
        for i, binding in enumerate(bindings):
            for var in variables_of(binding.value):
                first_use.setdefault(var, i)
        waiting: dict[Any, int] = {}
        replaced: dict[int, list[Any]] = {}
        for i, binding in enumerate(bindings):
            large = self._large_arguments(binding)
            first = next((waiting[a] for a in large if a in waiting), None)
            place = None if first is None else self._place(bindings, at, first_use, first, i)
            pair = None if first is None or place is None else self._pair(bindings[first], binding)
            if first is None or place is None or pair is None:
                waiting.update(dict.fromkeys(large, i))
                continue
            replaced[first], replaced[i] = [], []
            replaced[place] = pair
            for moved in (bindings[first], binding):
                at[moved.var] = place
                for var in variables_of(moved.value):
                    first_use[var] = min(first_use[var], place)
            for argument in large:
                waiting.pop(argument, None)
        return [new for i, binding in enumerate(bindings) for new in replaced.get(i, [binding])]

    def _large_arguments(self, binding: Any) -> list[Any]:
        """The tensors that a reduction of one result reads which are worth reading once less."""
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
        """A kernel with its maps inlined, and its one reduction, which ends it."""
        if variable not in self._reductions:
            self._reductions[variable] = self._as_reduction(self._mod[variable])
        return self._reductions[variable]

    def _as_reduction(self, func: Any) -> tuple[tirx.PrimFunc, Stage] | None:
        found = stages(func) if isinstance(func, tirx.PrimFunc) else None
        if not found or sum(bool(stage.reduced) for stage in found) != 1:
            return None
        sch = Schedule(func)
        rest = inline_maps(sch, self._may_repeat)
        if not rest[-1].reduced or not may_join(rest[-1]):
            return None
        return func.with_body(sch.mod["main"].body), rest[-1]

    @staticmethod
    def _place(
        bindings: list[Any], at: dict[Any, int], first_use: dict[Any, int], first: int, second: int
    ) -> int | None:
        """Which of two calls may be moved to the other: none if one needs the other."""
        if first_use.get(bindings[first].var, len(bindings)) > second:
            return second
        if all(at.get(var, -1) < first for var in variables_of(bindings[second].value)):
            return first
        return None

    def _pair(self, one: Any, other: Any) -> list[Any] | None:
        """Bindings of one call in place of two; None if they do not fit together."""
        kernel, arguments = self._together(one.value, other.value)
        if kernel is None:
            return None
        variable = self._named(kernel, one.value.args[0], other.value.args[0])
        self.replaced += [one.value.args[0], other.value.args[0]]
        types = [one.value.ty, other.value.ty]
        call = self._builder.normalize(relax.call_tir(variable, relax.Tuple(arguments), types))
        both = relax.DataflowVar("sums", call.ty)
        parts = []
        for index, binding in enumerate((one, other)):
            item = relax.TupleGetItem(both, index)
            parts.append(relax.VarBinding(binding.var, item, binding.span))
        return [relax.VarBinding(both, call, one.span), *parts]

    def _together(self, one: Any, other: Any) -> tuple[tirx.PrimFunc | None, list[Any]]:
        """The kernel of two calls, and its arguments; None if they are no siblings."""
        found, theirs = self._reduction(one.args[0]), self._reduction(other.args[0])
        assert found is not None and theirs is not None
        whole = side_by_side(
            Part(found[0], arguments_of(one)), Part(theirs[0], arguments_of(other))
        )
        reductions = [stage for stage in stages(whole.kernel) or [] if stage.reduced]
        return (whole.kernel if are_siblings(*reductions) else None), whole.arguments

    def _named(self, kernel: tirx.PrimFunc, *parts: Any) -> Any:
        """The variable of a kernel, which is kept for calls of an equal one."""
        for variable, known in self.made:
            if tvm_ffi.structural_equal(known, kernel):
                return variable
        hint = "_".join(str(part.name_hint) for part in parts)
        variable = self._builder.add_func(kernel, hint)
        self.made.append((variable, kernel))
        return variable
