"""A function as a line of steps, for a plan of its memory; and the function that a plan makes.

Steps are calls. What only names memory, such as an allocation, a tuple or a view, is no step: it is
bound where a step needs it first, and once more for the tensors that a repeated step writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Range
from tvm.s_tir import SBlockRealize

from ..ir.calls import calls_op
from ..ir.kernel_calls import ALLOCATION, bytes_of, variables_of
from ..ir.kernel_structure import static, substitute_values
from ..ir.rewrite import replace_body
from ..ir.visits import nodes_in
from .alias import Module, Use
from .call_effects import may_be_view
from .rematerialize import Program, Schedule, Step
from .reorder import freeing_first
from .stores import stored_parameters

_BYTES_PER_SECOND = 12e9
_STORES_PER_SECOND = 60e9
"""What two cores with AVX-512 move to and from memory, and compute. Only the ratio decides."""

_UNBOUNDED = np.iinfo(np.int64).max // 2
"""From here on a bound of TVM's says that there is none."""

_BETWEEN_DEVICES = ("relax.hint_on_device", "relax.to_vdevice")
_ALLOCATIONS = (ALLOCATION, "relax.memory.alloc_storage")


class PlannedRun(NamedTuple):
    """A step of a function, in the order of a plan.

    Attributes
    ----------
    kernel : str
        What it calls; empty if that is no kernel.
    position : int
        The step's position among those of the function before it was planned.
    bytes : int
        What planned tensors are in use meanwhile.
    """

    kernel: str
    position: int
    bytes: int


class PlannedTensor(NamedTuple):
    """A planned tensor: its name, its size in bytes, and the run that writes it."""

    name: str
    bytes: int
    run: int


@dataclass(frozen=True)
class _Call:
    """A step: a binding, and the tensors that it reads and writes, by their classes of memory."""

    binding: Any
    reads: set[int]
    writes: set[int]
    seconds: float
    is_pure: bool


class Line:
    """The steps of a function, in the order that frees memory first.

    Parameters
    ----------
    mod : IRModule
        Of calls of kernels with their outputs, each allocated.
    name : GlobalVar
        A function without branches.

    Attributes
    ----------
    program : Program
    kernels : set of GlobalVar
        Those that it calls.
    bytes_outside : int or None
        What it allocates, and the program does not plan: mostly results. None if some of it, or of
        the rest, has no known size.
    """

    def __init__(self, mod: tvm.IRModule, name: Any):
        self._mod, self._function = mod, mod[name]
        self._aliases = aliases = Module(mod.functions, views=True).function(name)
        self._bindings = {
            binding.var: binding
            for block in self._function.body.blocks
            for binding in block.bindings
        }
        self._uses: dict[Any, list[Use]] = {}
        self._stores: dict[Any, int] = {}
        for use in aliases.uses:
            self._uses.setdefault(use.binding, []).append(use)
        calls = [
            self._call(binding)
            for binding in self._bindings.values()
            if not _only_names(binding.value)
        ]
        self._allocation = self._planned(calls)
        classes = {region for call in calls for region in call.reads | call.writes}
        number = {region: index for index, region in enumerate(sorted(classes))}
        allocated = {
            number[aliases.region(aliases.values[var])]: binding
            for var, binding in self._allocation.items()
        }
        sizes = [
            bytes_of(allocated[index].var.ty) or 0 if index in allocated else 0
            for index in range(len(number))
        ]
        steps = [
            Step(
                tuple(sorted(number[region] for region in call.reads)),
                tuple(sorted(number[region] for region in call.writes)),
                call.seconds,
                call.is_pure,
            )
            for call in calls
        ]
        order = freeing_first(sizes, steps)
        self._order, self._calls = order, [calls[position] for position in order]
        self.kernels = {call.binding.value.op for call in calls if self._kernel(call.binding)}
        outside = [
            _bytes_taken(binding.value, binding.var.ty)
            for binding in self._bindings.values()
            if _allocates(binding.value) and binding.var not in self._allocation
        ]
        is_known = None not in outside
        self.bytes_outside = sum(size or 0 for size in outside) if is_known else None
        self._number = {binding.var: index for index, binding in allocated.items()}
        self.program = Program.of(sizes, [steps[position] for position in order])

    def _call(self, binding: Any) -> _Call:
        """A step, given what it is bound to."""
        kernel = self._kernel(binding)
        if kernel is not None:
            return self._kernel_call(binding, kernel, stored_parameters(kernel))
        uses = self._uses.get(binding.var, [])
        regions = {self._aliases.region(use.leaf) for use in uses}
        written = {self._aliases.region(use.leaf) for use in uses if use.writes}
        # Its result is there from here on.
        written |= self._aliases.regions_of(self._aliases.values[binding.var])
        return _Call(binding, regions, written, 0.0, False)

    def _kernel(self, binding: Any) -> tirx.PrimFunc | None:
        """The kernel that a binding calls; None if it calls none."""
        operator = getattr(binding.value, "op", None)
        kernel = self._mod[operator] if isinstance(operator, tvm.ir.GlobalVar) else None
        return kernel if isinstance(kernel, tirx.PrimFunc) else None

    def _kernel_call(self, binding: Any, kernel: tirx.PrimFunc, written: frozenset[int]) -> _Call:
        arguments = binding.value.args
        regions = [self._regions(argument) for argument in arguments]
        writes = set().union(*(regions[position] for position in written))
        reads = set().union(*(r for p, r in enumerate(regions) if p not in written))
        sizes = [bytes_of(argument.ty) for argument in arguments]
        is_pure = None not in sizes and bool(writes) and not _calls_out(kernel)
        moved = sum(size for size in sizes if size is not None)
        if kernel not in self._stores:
            self._stores[kernel] = _stores(kernel.body)
        seconds = max(moved / _BYTES_PER_SECOND, self._stores[kernel] / _STORES_PER_SECOND)
        return _Call(binding, reads, writes, seconds, is_pure)

    def _regions(self, argument: Any) -> set[int]:
        """The classes of memory of a kernel's argument; none of a constant, which nobody writes."""
        is_variable = isinstance(argument, tvm.ir.Var)
        return self._aliases.regions_of(self._aliases.values[argument]) if is_variable else set()

    def _planned(self, calls: list[_Call]) -> dict[Any, Any]:
        """The allocations that take part in the plan, by variable.

        Not those whose memory is returned, or held by a result of a step, or shared with another.
        """
        values, region = self._aliases.values, self._aliases.region
        held = self._aliases.escaping()
        for call in calls:
            held |= self._aliases.regions_of(values[call.binding.var])
        allocations: dict[int, list[Any]] = {}
        for binding in self._bindings.values():
            if calls_op(binding.value, ALLOCATION):
                allocations.setdefault(region(values[binding.var]), []).append(binding)
        return {
            binding.var: binding
            for key, (binding, *others) in allocations.items()
            if key not in held and not others and bytes_of(binding.var.ty)
        }

    def runs(self, schedule: Schedule) -> list[PlannedRun]:
        """The steps of a schedule."""
        runs = []
        for number, in_use in zip(schedule.step_of, schedule.in_use.tolist(), strict=False):
            binding = self._calls[number].binding
            is_kernel = self._kernel(binding) is not None
            name = str(binding.value.op.name_hint) if is_kernel else ""
            runs.append(PlannedRun(name, self._order[number], in_use))
        return runs

    def tensors(self, schedule: Schedule, position: int) -> list[PlannedTensor]:
        """The tensors in use at a position of a schedule, the largest first."""
        names = {number: var.name for var, number in self._number.items()}
        for binding in self._bindings.values():  # the names that the program gave them, if any
            if isinstance(binding.value, tvm.ir.Var) and binding.value in self._number:
                names[self._number[binding.value]] = binding.var.name
        tensors = [
            PlannedTensor(names[schedule.tensor_of[tensor]], life.size, life.first)
            for tensor, life in schedule.lifetimes.items()
            if life.first <= position <= life.last
        ]
        return sorted(tensors, key=lambda tensor: -tensor.bytes)

    def function(self, schedule: Schedule) -> relax.Function:
        """The function that runs a schedule, with all planned tensors in one block of memory."""
        writer = _Writer(self, schedule)
        for number, step in zip(schedule.step_of, schedule.steps, strict=True):
            writer.run(self._calls[number].binding, step)
        result = writer.current(self._function.body.body)
        body = relax.SeqExpr(
            [relax.BindingBlock(writer.bindings)], result, self._function.body.span
        )
        return replace_body(self._function, body)


class _Writer:
    """Writes the bindings of a function, for a schedule of its steps."""

    def __init__(self, line: Line, schedule: Schedule):
        self._line = line
        self._offsets, size = schedule.packed
        self._tensor_of = schedule.tensor_of
        self._now: dict[int, int] = {}
        self._bound: dict[Any, Any] = {}
        self._written: set[Any] = set()
        self.bindings: list[Any] = []
        self._block = self._bind("memory", _block(size)) if size else None

    def run(self, binding: Any, step: Step) -> None:
        """Write a step."""
        self._now.update((self._tensor_of[tensor], tensor) for tensor in step.tensors)
        var, value = binding.var, self.current(binding.value)
        if var in self._written:
            var = relax.Var(var.name, var.ty)
        self._written.add(var)
        self.bindings.append(relax.VarBinding(var, value, binding.span))

    def current(self, expr: Any) -> Any:
        """An expression of the variables that hold its values by now; binds them if need be."""
        replaced = {var: self._variable(var) for var in dict.fromkeys(variables_of(expr))}
        changed = {var: new for var, new in replaced.items() if not new.same_as(var)}
        return substitute_values(expr, changed) if changed else expr

    def _variable(self, var: Any) -> Any:
        """The variable that holds a value by now."""
        line = self._line
        if var in line._number:
            return self._tensor(var)
        binding = line._bindings.get(var)
        if binding is None or not _only_names(binding.value):
            return var  # a parameter, or the result of a step
        value = self.current(binding.value)
        if value.same_as(binding.value):
            if var not in self._bound:
                self._bound[var] = var
                self.bindings.append(binding)
            return var
        key = var, *(v for v in variables_of(value))
        if key not in self._bound:
            self._bound[key] = self._bind(var.name, value, var.ty)
        return self._bound[key]

    def _tensor(self, var: Any) -> Any:
        """The variable of a planned tensor, by now."""
        number = self._now[self._line._number[var]]
        if number not in self._bound:
            shape, dtype, device, _ = self._line._bindings[var].value.args
            offset = self._offsets[number]
            tensor = relax.op.memory.alloc_tensor(self._block, offset, shape, dtype, device)
            placed = self._bind(var.name, tensor)
            # Kernels take no offsets; the machine moves the address.
            self._bound[number] = self._bind(
                var.name, relax.op.memory.ensure_zero_offset(placed), var.ty
            )
        return self._bound[number]

    def _bind(self, name: str, value: Any, ty: Any = None) -> Any:
        value = relax.BlockBuilder().normalize(value)
        var = relax.Var(name, value.ty if ty is None else ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var


def _only_names(value: Any) -> bool:
    """Whether a value is memory under another name, or memory that nothing is in yet."""
    if isinstance(value, tvm.ir.Call):
        name = getattr(value.op, "name", "")
        return _allocates(value) or (may_be_view(value.op) and name not in _BETWEEN_DEVICES)
    return isinstance(
        value,
        tvm.ir.Var | tvm.ir.GenericConst | relax.Tuple | relax.TupleGetItem | relax.ShapeExpr,
    )


def _allocates(value: Any) -> bool:
    """Whether a value is new memory."""
    return any(calls_op(value, name) for name in _ALLOCATIONS)


def _bytes_taken(allocation: Any, ty: Any) -> int | None:
    """The size of what is allocated by itself; None if it is not known."""
    if calls_op(allocation, ALLOCATION):
        return bytes_of(ty)
    (size,) = allocation.args[0].values
    return static(size)


def _block(size: int) -> Any:
    """An allocation of a block of memory."""
    extent = relax.ShapeExpr([tirx.const(size, "int64")])
    return relax.op.memory.alloc_storage(extent, 0, "global", "uint8")


def _calls_out(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel calls functions that may do anything."""
    names = {str(getattr(call.op, "name", "")) for call in nodes_in(kernel.body, tvm.ir.Call)}
    return any("packed" in name or name == "tirx.call_extern" for name in names)


def _stores(statement: Any, bounds: tvm.sym.Analyzer | None = None) -> int:
    """How many elements a statement stores, at most: of a contraction, its multiply-adds."""
    bounds = bounds or tvm.sym.Analyzer()
    if isinstance(statement, tirx.BufferStore):
        return 1
    if isinstance(statement, tirx.SeqStmt):
        return sum(_stores(part, bounds) for part in statement.seq)
    if isinstance(statement, tirx.For):
        most = static(statement.extent)
        if most is None:
            bound = bounds.const_int_bound(statement.extent).max_value
            most = bound if 0 < bound < _UNBOUNDED else 1
        bounds.bind(statement.loop_var, Range(0, most))
        return most * _stores(statement.body, bounds)
    if isinstance(statement, SBlockRealize):
        return _stores(statement.block.body, bounds)
    parts = (getattr(statement, name, None) for name in ("body", "then_case", "else_case"))
    return sum(_stores(part, bounds) for part in parts if part is not None)
