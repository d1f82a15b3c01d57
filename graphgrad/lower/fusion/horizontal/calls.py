"""Calls of flat maps in a Relax function, and the memory that they and others touch."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from ....ir.calls import result_types
from ....ir.kernel_structure import is_among, static
from ....ir.tensor import has_shape
from ....ir.visits import visit_nodes
from ....memory.alias import Aliases, Module
from .chain import Call
from .flat import FlatMap

FLAT = "graphgrad.flat_map"
"""Attribute of a kernel: the number of its flat map, which equal kernels share."""

_MAX_PASSED_ELEMENTS = 1 << 12
"""The most elements of each tensor of a kernel across whose call fused calls may be moved."""

_OUT_OF_PLACE = tvm.ir.Op.get("relax.call_tir")
_IN_PLACE = tvm.ir.Op.get("relax.call_tir_inplace")


@dataclass(frozen=True)
class Touched:
    """The classes of memory that a call reads and writes."""

    reads: frozenset[int]
    writes: frozenset[int]

    def clashes(self, other: Touched) -> bool:
        """Whether two calls may not change places."""
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


@dataclass(frozen=True)
class Member:
    """A call of a flat map with one result.

    Attributes
    ----------
    binding : relax.VarBinding
        The binding of the call's result.
    call : Call
    touched : Touched
    """

    binding: Any
    call: Call
    touched: Touched


class Calls:
    """The flat maps' calls in a function, and the memory that its bindings access.

    Tensors are numbered, in the order in which they are met.

    Parameters
    ----------
    analyzed : Module
        The alias analysis of the module, with views.
    name : GlobalVar
    func : relax.Function
    flat_maps : dict
        The flat maps of the marked kernels, by number.
    """

    def __init__(
        self, analyzed: Module, name: Any, func: relax.Function, flat_maps: dict[int, FlatMap]
    ):
        self._functions, self._flat_maps = analyzed.functions, flat_maps
        self._aliases: Aliases = analyzed.function(name)
        self._reads: dict[Any, set[int]] = {}
        self._writes: dict[Any, set[int]] = {}
        for use in self._aliases.uses:
            touched = self._writes if use.writes else self._reads
            touched.setdefault(use.binding, set()).add(self._aliases.region(use.leaf))
        self._numbers: dict[Any, int] = {}
        self._tensors: list[Any] = []
        self._uses: Counter[Any] = Counter()
        visit_nodes(func, tvm.ir.Var, lambda var: self._uses.update([var]))  # bindings included
        self._members: dict[Any, Member | None] = {}

    def member(self, binding: Any) -> Member | None:
        """The call of a flat map that a binding holds; None if it holds something else."""
        if binding.var not in self._members:
            self._members[binding.var] = self._member(binding)
        return self._members[binding.var]

    def position(self, member: Member) -> int:
        """The time of a call: a number that grows in the order of execution."""
        return self._aliases.bound[member.binding.var]

    def touched(self, binding: Any) -> Touched:
        """The memory that a binding accesses; that of its results counts as written."""
        var = binding.var
        results = self._aliases.regions_of(self._aliases.values.get(var))
        reads, writes = self._reads.get(var, set()), self._writes.get(var, set())
        return Touched(frozenset(reads), frozenset(writes | results))

    def tensor(self, number: int) -> Any:
        """The Relax variable with a number."""
        return self._tensors[number]

    def shape(self, number: int) -> list[int]:
        """The shape of the tensor with a number."""
        return [int(extent) for extent in self._tensors[number].ty.shape.values]

    def region(self, number: int) -> int:
        """The class of memory of the tensor with a number."""
        (region,) = self._aliases.regions_of(self._aliases.value(self._tensors[number]))
        return region

    def uses(self, number: int) -> int:
        """The number of uses of a tensor, given its number; its binding does not count."""
        return self._uses[self._tensors[number]] - 1

    def is_harmless(self, binding: Any) -> bool:
        """Whether flat maps may move across a binding that does not access their memory.

        Not across large kernels: tensors would be kept in memory much longer.
        """
        value = getattr(binding, "value", None)
        if not isinstance(value, tvm.ir.Call):
            # Another name for a tensor, or for an item of a tuple, computes nothing.
            return isinstance(value, tvm.ir.Var | relax.TupleGetItem)
        if value.op != _OUT_OF_PLACE or not isinstance(value.args[1], relax.Tuple):
            return False
        results = result_types(value.ty)
        argument_types = [argument.ty for argument in value.args[1].fields]
        return all(_elements(ty) <= _MAX_PASSED_ELEMENTS for ty in (*results, *argument_types))

    def _member(self, binding: Any) -> Member | None:
        """The call of a flat map with one result that a binding holds; None if it holds none."""
        value = getattr(binding, "value", None)
        if not isinstance(value, tvm.ir.Call) or value.op not in (_OUT_OF_PLACE, _IN_PLACE):
            return None
        arguments = value.args[1]
        if len(value.args) != 2 or not isinstance(arguments, relax.Tuple):
            return None
        kernel = self._flat_map(self._functions[value.args[0]])
        fields = list(arguments.fields)
        if kernel is None or not isinstance(value.ty, relax.TensorType):
            return None
        if not all(isinstance(field, tvm.ir.Var) for field in fields):
            return None
        if not _fits(kernel, [*(field.ty for field in fields), value.ty]):
            return None
        # -1 stands for a result in memory of its own.
        overwritten = int(value.attrs.inplace_indices[0]) if value.op == _IN_PLACE else -1
        call = Call(
            kernel,
            [self._number(field) for field in fields],
            self._number(binding.var),
            None if overwritten < 0 else overwritten,
        )
        return Member(binding, call, self.touched(binding))

    def _flat_map(self, kernel: tirx.PrimFunc) -> FlatMap | None:
        """The flat map that a kernel is marked with; None if it is not marked."""
        number = kernel.attrs.get(FLAT) if kernel.attrs else None
        return None if number is None else self._flat_maps[int(number)]

    def _number(self, var: Any) -> int:
        """The number of a variable; a new one if it has none yet."""
        if var not in self._numbers:
            self._numbers[var] = len(self._tensors)
            self._tensors.append(var)
        return self._numbers[var]


def _fits(kernel: FlatMap, types: list[Any]) -> bool:
    """Whether a kernel's parameters are tensors of some types, of which it writes the last alone.

    A kernel that comes with the program may overwrite its inputs and have no parameter for its
    result. And Relax may know less of the arguments' shapes than the kernel does.
    """
    written = [buffer for buffer, _ in kernel.stores if is_among(buffer, kernel.params)]
    return (
        len(kernel.params) == len(types)
        and len(written) == 1
        and written[0].same_as(kernel.params[-1])
        and all(_is_of(ty, param) for ty, param in zip(types, kernel.params, strict=True))
    )


def _is_of(ty: Any, param: Any) -> bool:
    """Whether a Relax type has the shape and the dtype of a kernel's parameter."""
    if not has_shape(ty):
        return False
    extents = [static(extent) for extent in ty.shape.values]
    return (
        None not in extents
        and extents == [static(extent) for extent in param.shape]
        and str(ty.dtype) == str(param.dtype)
    )


def _elements(ty: Any) -> float:
    """The number of elements of a tensor; infinity if it is not known statically."""
    if not has_shape(ty):
        return math.inf
    extents = [static(extent) for extent in ty.shape.values]
    return math.inf if None in extents else math.prod(extents)  # type: ignore[arg-type]
