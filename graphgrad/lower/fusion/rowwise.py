"""Kernels that compute row by row from the same rows, as one kernel.

The statistics of a norm and the map that normalizes by them, or the sums and the map of its
gradient, read the same tensors. One kernel of all of them does so once: what it computes of a row
it computes while the row is in the cache; see `lower/cpu/rowwise`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import Schedule, ScheduleError

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
from ..cpu.contraction import blocks_of
from ..cpu.group_vectors import vectorize_groups
from ..cpu.plain_indices import simplify_indices
from ..cpu.rowwise import chain_of, is_by_rows, rows_reduced
from ..cpu.split_axes import split_axes
from ..cpu.vector_unit import VectorUnit
from ..kernels.contraction import reuses_operands
from ..kernels.inline_maps import MayRepeat, inline_maps
from .merge import Part
from .side_by_side import side_by_side

_MIN_SHARED_BYTES = 1 << 16
"""Bytes of a tensor that is worth moving once less."""

_MAX_SIDE_STAGE_ELEMENTS = 1 << 14
"""Elements of a stage that may stand beside a chain, such as a parameter in another shape."""

_MAX_BINDING_DISTANCE = 16
"""Bindings between two calls that become one: what the first reads or writes lives longer."""

_MAX_RESULTS = 8
"""Of a kernel: each is a tensor that it writes."""


@compiler_pass(
    Phase.FUSED,
    targets=("llvm",),
    after={"fuse_siblings": "it joins kernels of one result each, and these have several"},
)
def fuse_rowwise(mod: tvm.IRModule, unit: VectorUnit, may_repeat: MayRepeat) -> tvm.IRModule:
    """Make one kernel of kernels that compute by the same rows.

    Parameters
    ----------
    mod : IRModule
    unit : VectorUnit
    may_repeat : function
        Which maps a schedule will inline; see `inline_maps`.
    """
    builder = relax.BlockBuilder(mod)
    kernels = _Kernels(builder, mod, unit, may_repeat)
    changed = map_dataflow_blocks(mod, lambda bindings: _Block(bindings, kernels).joined(), builder)
    return drop_unused_kernels(changed, kernels.replaced) if kernels.replaced else mod


@dataclass(frozen=True)
class _Call:
    """A kernel call of a block, with the bindings of its results.

    Attributes
    ----------
    kernel : GlobalVar
    arguments : list
    results : list of Var
        One for each result, in order.
    span : Span
    """

    kernel: Any
    arguments: list[Any]
    results: list[Any]
    span: Any


@dataclass(frozen=True)
class _Rows:
    """What tells, before anything is made, whether a kernel could be part of a chain.

    Attributes
    ----------
    stages : list of Stage
    blocks : dict
        Their blocks, by name.
    reduced : list of tuple of int
        The extents of the rows that its stages reduce.
    """

    stages: list[Stage]
    blocks: dict[str, Any]
    reduced: list[tuple[int, ...]]

    @classmethod
    def of(cls, kernel: tirx.PrimFunc, unit: VectorUnit) -> _Rows | None:
        found = stages(kernel)
        if not found or any(map(reuses_operands, found)) or _is_large_view(kernel, found):
            return None
        # As the schedule will restate it, before it asks for chains: `schedule._REGROUPED`.
        plain, _ = split_axes(vectorize_groups(simplify_indices(kernel)))
        found = found if plain.same_as(kernel) else stages(plain) or []
        blocks = blocks_of(plain.body)
        return cls(found, blocks, rows_reduced(found, blocks, unit))

    def goes_by(self, extents: tuple[int, ...], unit: VectorUnit) -> bool:
        """Whether all of its stages that take time could go by rows of these extents."""
        return all(
            stage.work <= _MAX_SIDE_STAGE_ELEMENTS or is_by_rows(stage, self.blocks, extents, unit)
            for stage in self.stages
        )


def _is_large_view(kernel: tirx.PrimFunc, found: Sequence[Stage]) -> bool:
    """Whether a kernel gives a tensor another shape: alone, it is no work at all."""
    large = any(stage.work > _MAX_SIDE_STAGE_ELEMENTS for stage in found)
    return large and bool(relax.analysis.has_reshape_pattern(kernel))


class _Kernels:
    """The kernels of a module, and those made of several.

    Attributes
    ----------
    replaced : list of GlobalVar
        Kernels that fewer calls call.
    """

    def __init__(
        self,
        builder: relax.BlockBuilder,
        mod: tvm.IRModule,
        unit: VectorUnit,
        may_repeat: MayRepeat,
    ):
        self._builder, self._mod, self._unit = builder, mod, unit
        self._may_repeat = may_repeat
        self._known: dict[Any, _Rows | None] = {}
        self._inlined: dict[Any, tirx.PrimFunc | None] = {}
        self._made: list[tuple[Any, tirx.PrimFunc]] = []
        self.replaced: list[Any] = []

    def joint(self, one: _Call, other: _Call, needed: Callable[[Any], bool]) -> _Call | None:
        """One call in the place of two; None if they are no chain of rows.

        Parameters
        ----------
        one, other : _Call
            The second may read what the first makes.
        needed : function
            Whether anything but the two reads a result of the first.
        """
        ours, theirs = self._rows(one.kernel), self._rows(other.kernel)
        if ours is None or theirs is None or not self._may_share_rows(ours, theirs):
            return None
        first, second = map(self._inline_all_maps, (one.kernel, other.kernel))
        if first is None or second is None or not stages(first) or not stages(second):
            return None
        kept = [needed(result) for result in one.results]
        whole = side_by_side(
            Part(first, one.arguments), Part(second, other.arguments), one.results, kept
        )
        results = [r for r, stays in zip(one.results, kept, strict=True) if stays] + other.results
        if len(results) > _MAX_RESULTS or not self._is_chain(whole.kernel):
            return None
        self.replaced += [one.kernel, other.kernel]
        name = self._named(whole.kernel, one.kernel, other.kernel)
        return _Call(name, whole.arguments, results, other.span)

    def bindings(self, call: _Call) -> list[Any]:
        """The bindings of a call that was made of several."""
        types = [result.ty for result in call.results]
        value = relax.call_tir(
            call.kernel, relax.Tuple(call.arguments), types if len(types) > 1 else types[0]
        )
        value = self._builder.normalize(value)
        if len(types) == 1:
            return [relax.VarBinding(call.results[0], value, call.span)]
        whole = relax.DataflowVar("rows", value.ty)
        items = [
            relax.VarBinding(result, relax.TupleGetItem(whole, index), call.span)
            for index, result in enumerate(call.results)
        ]
        return [relax.VarBinding(whole, value, call.span), *items]

    def _kernel(self, variable: Any) -> Any:
        made = next((func for known, func in self._made if known.same_as(variable)), None)
        return self._mod[variable] if made is None else made

    def _rows(self, variable: Any) -> _Rows | None:
        """The description of a kernel; None if it cannot be part of a chain."""
        if variable not in self._known:
            kernel = self._kernel(variable)
            is_kernel = isinstance(kernel, tirx.PrimFunc)
            self._known[variable] = _Rows.of(kernel, self._unit) if is_kernel else None
        return self._known[variable]

    def _may_share_rows(self, one: _Rows, other: _Rows) -> bool:
        """Whether all stages of two kernels could go by rows that one of them reduces."""
        return any(
            one.goes_by(extents, self._unit) and other.goes_by(extents, self._unit)
            for extents in dict.fromkeys([*one.reduced, *other.reduced])
        )

    def _inline_all_maps(self, variable: Any) -> tirx.PrimFunc | None:
        """A kernel with its maps inlined; None if TVM refuses that."""
        if variable not in self._inlined:
            kernel = self._kernel(variable)
            try:
                sch = Schedule(kernel)
                inline_maps(sch, self._may_repeat)
                kernel = simplify_indices(kernel.with_body(sch.mod["main"].body))
            except (ScheduleError, tvm.error.InternalError):
                kernel = None
            self._inlined[variable] = kernel
        return self._inlined[variable]

    def _is_chain(self, kernel: tirx.PrimFunc) -> bool:
        """Whether all stages of a kernel that take time are one chain."""
        kernel, _ = split_axes(vectorize_groups(kernel))
        found = stages(kernel) or []
        internal = list(kernel.body.block.alloc_buffers)
        chain = chain_of(found, blocks_of(kernel.body), internal, self._unit)
        return chain is not None and all(
            chain.has(stage.name) or stage.work <= _MAX_SIDE_STAGE_ELEMENTS for stage in found
        )

    def _named(self, kernel: tirx.PrimFunc, *parts: Any) -> Any:
        """The variable of a kernel, which is kept for calls of an equal one."""
        for variable, known in self._made:
            if tvm_ffi.structural_equal(known, kernel):
                return variable
        hint = "_".join(str(part.name_hint) for part in parts)
        variable = self._builder.add_func(kernel, hint)
        self._made.append((variable, kernel))
        return variable


class _Block:
    """The bindings of a dataflow block, on the way to fewer calls.

    They are kept as entries: a call of one kernel with all bindings of its results, or one binding
    of anything else.
    """

    def __init__(self, bindings: Sequence[Any], kernels: _Kernels):
        self._kernels = kernels
        self._entries = _entries(bindings)

    def joined(self) -> list[Any]:
        """The bindings with calls that compute by the same rows as one."""
        position = 0
        while position < len(self._entries):
            position = (
                self._fuse_with_earlier(position) if self._entries[position].call else position + 1
            )
        return [binding for entry in self._entries for binding in entry.bindings]

    def _fuse_with_earlier(self, position: int) -> int:
        """Join a call with one before it, if there is one; return where to go on."""
        own = self._entries[position]
        assert own.call is not None
        for earlier in range(position - 1, max(position - 1 - _MAX_BINDING_DISTANCE, -1), -1):
            other = self._entries[earlier]
            if other.call is None or not _may_pay(other, own):
                continue
            place = self._place(earlier, position)
            if place is None:
                continue
            call = self._kernels.joint(other.call, own.call, lambda r: self._is_needed(r, own))
            if call is not None:
                self._entries[place] = _Entry.of(call, self._kernels.bindings(call))
                del self._entries[earlier if place == position else position]
                return place if place == earlier else place - 1
        return position + 1

    def _place(self, first: int, second: int) -> int | None:
        """Which of two entries may be moved to the other: none if one needs the other."""
        between = self._entries[first + 1 : second]
        if not any(self._entries[first].makes & entry.reads for entry in between):
            return second
        if not any(self._entries[second].reads & entry.makes for entry in between):
            return first
        return None

    def _is_needed(self, result: Any, reader: _Entry) -> bool:
        """Whether a result is read by others than one entry, or outside the block."""
        return not isinstance(result, relax.DataflowVar) or any(
            result in entry.reads for entry in self._entries if entry is not reader
        )


@dataclass(frozen=True)
class _Entry:
    """Bindings that stay together.

    Attributes
    ----------
    bindings : list
    call : _Call or None
        The call of a kernel that these are.
    reads, makes : frozenset of Var
    """

    bindings: list[Any]
    call: _Call | None
    reads: frozenset[Any]
    makes: frozenset[Any]

    @classmethod
    def of(cls, call: _Call | None, bindings: list[Any]) -> _Entry:
        makes = frozenset(binding.var for binding in bindings)
        reads = frozenset(v for binding in bindings for v in variables_of(binding.value))
        return cls(bindings, call, reads - makes, makes)


def _may_pay(one: _Entry, other: _Entry) -> bool:
    """Whether joining may pay: one call hands over to the other, or both read much."""
    shared = one.reads & other.reads
    return bool(one.makes & other.reads) or any(
        (bytes_of(v.ty) or 0) >= _MIN_SHARED_BYTES for v in shared
    )


def _entries(bindings: Sequence[Any]) -> list[_Entry]:
    """The bindings of a block as entries; items of tuples go with what makes the tuples."""
    items: dict[Any, list[Any]] = {}
    uses: dict[Any, int] = {}
    for binding in bindings:
        for var in variables_of(binding.value):
            uses[var] = uses.get(var, 0) + 1
        value = getattr(binding, "value", None)
        if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, tvm.ir.Var):
            items.setdefault(value.tuple_value, []).append(binding)
    entries = []
    moved: set[Any] = set()
    for binding in bindings:
        if binding.var in moved:
            continue
        own = items.get(binding.var, [])
        call = _call(binding, own, uses.get(binding.var, 0))
        if call is None or not isinstance(call.kernel, tvm.ir.GlobalVar):
            entries.append(_Entry.of(None, [binding]))
            continue
        moved.update(item.var for item in own)
        entries.append(_Entry.of(call, [binding, *own]))
    return entries


def _call(binding: Any, items: Sequence[Any], uses: int) -> _Call | None:
    """The call that a binding is, with its results; None if it is not a kernel's."""
    if not isinstance(binding, relax.VarBinding) or not is_kernel_call(binding.value):
        return None
    value = binding.value
    if isinstance(value.ty, relax.TensorType):
        return _Call(value.args[0], arguments_of(value), [binding.var], binding.span)
    indices = [int(item.value.index) for item in items]
    if len(items) != uses or len(set(indices)) != len(indices):
        return None
    if not isinstance(binding.var, relax.DataflowVar):
        return None
    named = dict(zip(indices, (item.var for item in items), strict=True))
    results = [
        named[index] if index in named else relax.DataflowVar("unread", ty)
        for index, ty in enumerate(value.ty.fields)
    ]
    return _Call(value.args[0], arguments_of(value), results, binding.span)
