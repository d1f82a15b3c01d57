"""Maps with several readers, computed in each of them.

Stock fusion leaves a map that is read twice in memory. Where it is made of few operations, its
readers can as well read the map's own sources: that moves fewer bytes, and needs no memory. So it
gets a copy for each reader, and stock fusion puts each copy into the kernel of its reader.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from ...ir.kernel_calls import (
    INJECTIVE_PATTERN,
    OPAQUE_PATTERN,
    RECOMPUTABLE,
    REDUCTION_PATTERN,
    arguments_of,
    bytes_of,
    is_kernel_call,
    map_dataflow_blocks,
    variables_of,
)
from ...ir.kernel_structure import Load, Stage, buffer_of, stages, volume
from ...ir.passes import Phase, compiler_pass
from ...ir.tensor import bits
from ...ir.visits import nodes_in
from ...tvm_fixes.hooks import set_type
from ..cpu.tuning import Processor
from ..cpu.vector_math import FUNCTIONS, is_expandable
from ..kernels.contraction import reuses_operands

_MAX_OPERATIONS = 24
"""Operations of a map that is computed several times, index arithmetic included."""

_MAX_TOTAL_OPERATIONS = 48
"""Operations of such a map and of those that are computed again for it. So a reader has at most
this many copies, however long the chain of maps in front of it is."""

_CHEAP_CALLS = {"prim.if_then_else", "tirx.fabs", "tirx.sqrt", "tirx.isnan", "tirx.likely"}
"""Functions that cost no more than some arithmetic."""

_FUNCTION_OPERATIONS = 8
"""Operations that an exponential or its kin counts for. In vectors it takes as long as to write an
element of a large tensor and to read it again, so few copies of one cost nothing but arithmetic."""

_MAX_FUNCTION_KERNELS = 3
"""Kernels that compute such a function. The sigmoid of a gate, x · sigmoid(x) · y, has three, and
five readers: the gate, and the gradients by x and by y."""


@compiler_pass(
    Phase.KERNELS,
    requires={"AnnotateTIROpPattern": "it tells maps by the kinds that TVM has noted"},
    after={"share_results": "it would make one of the copies again"},
    before={"FuseOps": "it puts each copy into the kernel of its reader"},
)
def recompute_maps(mod: tvm.IRModule, processor: Processor) -> tvm.IRModule:
    """Compute maps in each of their readers, where that pays.

    On a GPU a map counts with what copies of it read in the end, through other maps that are
    recomputed: in long chains, such as the sums of gradients along residual connections, that is
    more with each link.
    """
    kernels = {
        variable: _Kernel.of(func)
        for variable, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
    }
    return map_dataflow_blocks(
        mod, lambda bindings: _Block(bindings, kernels, processor.is_gpu).repeated()
    )


@dataclass(frozen=True)
class _Kernel:
    """What decides whether a kernel is recomputed, or takes in maps that are.

    Attributes
    ----------
    kind : int
        TVM's kind of the kernel, its `OpPatternKind`.
    stages : list of Stage
        Empty if the kernel is not a sequence of stages.
    params : list of Buffer
    is_cheap_map : bool
        Whether it may be computed several times.
    is_marked : bool
        Whether it says so itself (`RECOMPUTABLE`). It counts as no larger than others may be.
    functions : int
        How many calls of exponentials and the like it has.
    """

    kind: int
    stages: list[Stage]
    params: list[Any]
    is_cheap_map: bool
    is_marked: bool
    functions: int

    @classmethod
    def of(cls, func: tirx.PrimFunc) -> _Kernel:
        """The description of a kernel, from its stages and the kind that TVM has noted."""
        attributes = func.attrs or {}
        kind = int(attributes.get("op_pattern", OPAQUE_PATTERN))
        kernel_stages = stages(func) or []
        is_marked = RECOMPUTABLE in attributes
        is_cheap_map = (
            kind <= INJECTIVE_PATTERN
            and bool(kernel_stages)
            and (is_marked or all(map(_is_cheap, kernel_stages)))
        )
        functions = sum(len(_functions(stage)) for stage in kernel_stages)
        return cls(kind, kernel_stages, list(func.params), is_cheap_map, is_marked, functions)

    @property
    def operations(self) -> int:
        """The size of its expressions, and what its functions count for."""
        count = sum(stage.operations for stage in self.stages)
        if self.is_marked:
            count = min(count, _MAX_OPERATIONS)
        return count + _FUNCTION_OPERATIONS * self.functions

    def may_compute(self, position: int, elements: int, with_functions: bool) -> bool:
        """Whether an argument of so many elements may be computed where it is read.

        An argument whose map calls functions (`with_functions`) has to get the same bits in all
        readers, because some may compare it with what others have made of it. So each reader must
        be a map, in which the functions are expanded to the same vector arithmetic.
        """
        if (
            self.kind > (INJECTIVE_PATTERN if with_functions else REDUCTION_PATTERN)
            or not self.stages
        ):
            return False
        readers = [s for s in self.stages if any(self._reads(s, position))]
        # A load under a condition is not vectorized, and a scalar function may round otherwise.
        if with_functions and any(s.conditional for s in readers):
            return False
        # A reader that goes over more points than there are elements, or a contraction, reads each
        # element several times, and would compute it as often.
        return all(
            s.axes and volume(s.axes) <= elements and not reuses_operands(s) for s in readers
        )

    def _reads(self, stage: Stage, position: int) -> list[bool]:
        return [buffer_of(load).same_as(self.params[position]) for load in stage.loads]


def _is_cheap(stage: Stage) -> bool:
    """Whether a stage may be computed several times: a map of few operations and plain reads.

    A read whose index is itself read from a tensor is not plain.
    """
    indirect = nodes_in([index for load in stage.loads for index in load.indices], Load)
    functions = _functions(stage)
    names = {str(call.op.name) for call in functions}
    return (
        not stage.reduced
        and not indirect
        and stage.operations <= _MAX_OPERATIONS
        and stage.calls <= _CHEAP_CALLS | names
        and all(map(is_expandable, functions))
        and not (functions and stage.conditional)
    )


def _functions(stage: Stage) -> list[Any]:
    """The calls of functions that can be expanded to vector arithmetic, in some dtype."""
    calls = nodes_in(stage.values, tvm.ir.Call)
    return [call for call in calls if getattr(call.op, "name", "") in FUNCTIONS]


def _widens(binding: Any) -> bool:
    """Whether a kernel's result is of more bits than all that it reads: memory then keeps that."""
    read = (bits(str(argument.ty.dtype)) for argument in arguments_of(binding.value))
    return bits(str(binding.var.ty.dtype)) > max(read, default=0)


class _Block:
    """The bindings of a dataflow block while copies are put in front of readers.

    `_kernels` has the kernel of each variable, None of one that is bound to no call of a kernel.
    `_completed` are the maps that a contraction computes where it stores its results;
    `_operations` has, for each map of which copies may be made, the operations of one copy, and
    `_read` what one reads. `_ends` tells, for each variable, the last map of the kernel that stock
    fusion makes of it and what follows.
    """

    def __init__(self, bindings: list[Any], kernels: dict[Any, _Kernel], through_maps: bool):
        self._kernels = {
            binding.var: kernels[binding.value.args[0]] if is_kernel_call(binding.value) else None
            for binding in bindings
        }
        self._order = [binding.var for binding in bindings]
        self._bindings = {binding.var: binding for binding in bindings}
        self._copies: dict[Any, list[Any]] = {}
        self._readers: dict[Any, list[Any]] = {}
        for binding in bindings:
            for var in dict.fromkeys(variables_of(binding.value)):
                self._readers.setdefault(var, []).append(binding.var)
        self._ends: dict[Any, Any] = {}
        for var in reversed(self._order):
            self._ends[var] = self._end(var)
        self._completed: set[Any] = set()
        self._operations: dict[Any, int] = {}
        self._read: dict[Any, list[Any]] = {}
        for binding in bindings:
            if self._completes(binding):
                self._completed.add(binding.var)
            elif self._may_be_recomputed(binding):
                self._operations[binding.var] = self._operations_of(binding)
                if through_maps:
                    self._read[binding.var] = self._sources(binding)

    def repeated(self) -> list[Any]:
        """The bindings with copies, each in front of its reader."""
        # Readers first: a copy is a further reader of its sources, which come later in this order.
        for var in reversed(self._order):
            self._recompute(var)
        order: dict[Any, Any] = {}
        for var in self._order:
            self._append(var, order)
        return list(order.values())

    def _append(self, var: Any, order: dict[Any, Any]) -> None:
        for copy in self._copies.get(var, []):
            if copy not in order:
                self._append(copy, order)
        order[var] = self._bindings[var]

    def _recompute(self, var: Any) -> None:
        """Give all readers but the first copies, and each copy the same chance for its sources."""
        binding = self._bindings[var]
        readers = self._readers.get(var, [])
        if len(readers) > 1 and var in self._operations and self._pays(binding, readers):
            self._readers[var], *others = self._sharing(binding, readers)
            for group in others:
                self._copy(binding, group)
        self._ends[var] = self._end(var)

    def _copy(self, binding: Any, readers: list[Any]) -> None:
        """Have some readers of a map read a copy."""
        copy = relax.DataflowVar(binding.var.name, binding.var.ty)
        self._bindings[copy] = relax.VarBinding(copy, binding.value, binding.span)
        self._kernels[copy] = self._kernels[binding.var]
        self._readers[copy] = readers
        self._ends[copy] = self._end(copy)
        for source in dict.fromkeys(variables_of(binding.value)):
            self._readers[source].append(copy)
        for reader in readers:
            self._copies.setdefault(reader, []).append(copy)
            self._replace(reader, binding.var, copy)

    def _sharing(self, binding: Any, readers: list[Any]) -> list[list[Any]]:
        """The readers of a map, grouped by the copy that they read.

        Readers in one kernel share what calls functions: copies there would count as calls that
        stock fusion puts into one kernel, of which there is a limit. Nor is what is marked copied.
        """
        kernel = self._kernels[binding.var]
        if not (kernel is not None and (kernel.functions or kernel.is_marked)):
            return [[reader] for reader in readers]
        groups: dict[Any, list[Any]] = {}
        for reader in readers:
            groups.setdefault(self._ends[reader], []).append(reader)
        return list(groups.values())

    def _replace(self, reader: Any, old: Any, new: Any) -> None:
        binding = self._bindings[reader]
        call = binding.value
        arguments = [new if a.same_as(old) else a for a in arguments_of(call)]
        fields = relax.Tuple(arguments)
        changed = relax.Call(call.op, [call.args[0], fields], call.attrs, call.ty_args, call.span)
        set_type(changed, call.ty)
        self._bindings[reader] = relax.VarBinding(reader, changed, binding.span)

    def _may_be_recomputed(self, binding: Any) -> bool:
        """Whether copies of a map may be made, for the readers that it has or for more."""
        return (
            isinstance(binding.var, relax.DataflowVar)
            and self._pays(binding, self._readers.get(binding.var, []))
            and self._operations_of(binding) <= _MAX_TOTAL_OPERATIONS
        )

    def _operations_of(self, binding: Any) -> int:
        """The operations of a copy, and of the copies of other maps that it reads."""
        kernel = self._kernels[binding.var]
        assert kernel is not None
        sources = dict.fromkeys(variables_of(binding.value))
        return max(kernel.operations, 1) + sum(
            self._operations.get(source, 0) for source in sources
        )

    def _pays(self, binding: Any, readers: list[Any]) -> bool:
        """Whether copies of a map move fewer bytes than the map, written and read."""
        size = bytes_of(binding.var.ty) if self._is_cheap_map(binding) else None
        if size is None:
            return False
        if self._functions(binding) and (
            len({self._ends[reader] for reader in readers}) > _MAX_FUNCTION_KERNELS
        ):
            return False
        if not all(self._may_compute(reader, binding.var) for reader in readers):
            return False
        sizes = [bytes_of(source.ty) for source in self._sources(binding)]
        if None in sizes:
            return False
        # With n readers the map is written once and read n times; without it, its sources are read
        # n times and not once.
        read: int = sum(sizes)  # type: ignore[arg-type]
        return read * (len(readers) - 1) <= size * (len(readers) + 1)

    def _end(self, var: Any) -> Any:
        """The last map of a kernel, given those of the variable's readers."""
        readers = self._readers.get(var, [])
        ends = {self._ends[reader] for reader in readers}
        is_inside = isinstance(var, relax.DataflowVar) and all(map(self._is_map, [var, *readers]))
        return ends.pop() if is_inside and len(ends) == 1 else var

    def _functions(self, binding: Any) -> int:
        kernel = self._kernels[binding.var]
        assert kernel is not None
        return kernel.functions

    def _is_map(self, var: Any) -> bool:
        kernel = self._kernels[var]
        return kernel is not None and kernel.kind <= INJECTIVE_PATTERN

    def _sources(self, binding: Any) -> list[Any]:
        """The variables that a copy of a map reads."""
        arguments = [a for a in arguments_of(binding.value) if isinstance(a, tvm.ir.Var)]
        read = (each for argument in arguments for each in self._read.get(argument, [argument]))
        return list(dict.fromkeys(read))

    def _is_cheap_map(self, binding: Any) -> bool:
        kernel = self._kernels[binding.var]
        return (
            kernel is not None
            and kernel.is_cheap_map
            and isinstance(binding, relax.VarBinding)
            and isinstance(binding.value.ty, relax.TensorType)
        )

    def _may_compute(self, reader: Any, var: Any) -> bool:
        """Whether stock fusion will put a map into the kernel of a reader."""
        kernel, binding = self._kernels[reader], self._bindings[reader]
        if kernel is None or not isinstance(binding, relax.VarBinding):
            return False
        elements = math.prod(map(int, var.ty.shape.values))
        positions = [i for i, a in enumerate(arguments_of(binding.value)) if a.same_as(var)]
        with_functions = bool(self._functions(self._bindings[var]))
        return bool(positions) and all(
            kernel.may_compute(i, elements, with_functions) for i in positions
        )

    def _completes(self, binding: Any) -> bool:
        """Whether a map is the epilogue of a contraction, or follows such a map.

        It costs nothing where the contraction stores its results, and the contraction's own result
        is never stored. A copy would have to read that result.
        """
        if not self._is_cheap_map(binding) or _widens(binding):
            return False
        for source in arguments_of(binding.value):
            if source not in self._bindings or len(self._readers[source]) != 1:
                continue
            kernel = self._kernels[source]
            if source in self._completed:
                return True
            if kernel is not None and kernel.kind > REDUCTION_PATTERN:
                return True
        return False
