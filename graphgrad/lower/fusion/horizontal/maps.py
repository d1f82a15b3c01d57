"""Flat maps that follow each other fused into few kernels, each with one parallel loop.

The update of a network changes each parameter by a few maps over its elements, and each statistic
by one. Here the maps that share tensors become one loop, and loops that do the same to different
tensors become one kernel over all of them.

Calls are fused only where no kernel of some size is called between them, so that no tensor is kept
in memory much longer than before. And only where no call writes what another one, with which it
changes places, reads or writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from ....ir.kernel_calls import drop_unused_kernels
from ....ir.passes import Phase, compiler_pass
from ....ir.rewrite import map_functions, map_kernels, rebuilt, replace_bindings, replace_body
from ....memory.alias import Module
from .calls import FLAT, Calls, Member, Touched
from .chain import Call, Cell, Chain, Formula
from .flat import FlatMap, flat_map
from .kernel import RowsWriter

_MAX_CELLS = 16
"""The most tensors of a chain: a loop over more is no faster than two."""


@compiler_pass(
    Phase.FUSED,
    provides="flat_maps",
    after={
        "fuse_accumulation": "what is marked must not become another kernel",
        "copy_overlaps": "copies are flat maps too",
    },
    because="schedules hide what a map does",
)
def mark_flat_maps(
    mod: tvm.IRModule, rows_writer: RowsWriter
) -> tuple[tvm.IRModule, dict[int, FlatMap]]:
    """Mark the kernels that are flat maps with a number; equal kernels get the same.

    Returns the module, and the flat maps by number. Their elements are of types that `rows_writer`
    takes.
    """
    flat_maps: dict[int, FlatMap] = {}
    numbered: dict[int, list[tuple[tirx.PrimFunc, int]]] = {}

    def marked(_: Any, func: tirx.PrimFunc) -> tirx.PrimFunc:
        kernel_map = flat_map(func, rows_writer.dtypes)
        # One that only gives a tensor another shape becomes a view, and moves nothing.
        if kernel_map is None or _is_view(func):
            return func
        same_hash = numbered.setdefault(tvm_ffi.structural_hash(func), [])
        number = next(
            (n for f, n in same_hash if tvm_ffi.structural_equal(f, func)), len(flat_maps)
        )
        same_hash.append((func, number))
        flat_maps.setdefault(number, kernel_map)
        return func.with_attr(FLAT, number)

    return map_kernels(mod, marked), flat_maps


@compiler_pass(
    Phase.DONATED,
    because="donation has decided which results overwrite arguments",
)
def fuse_horizontally(
    mod: tvm.IRModule, flat_maps: dict[int, FlatMap], rows_writer: RowsWriter
) -> tvm.IRModule:
    """Fuse flat maps that follow each other into few kernels.

    Parameters
    ----------
    mod : IRModule
    flat_maps : dict
        The flat maps of the marked kernels, by number.
    rows_writer : RowsWriter
        How the target computes many of them in one kernel.
    """
    if not flat_maps:
        return mod
    # One builder, and one search for what is unused: each goes through the whole module.
    builder = relax.BlockBuilder(mod)
    analyzed = Module(mod.functions, views=True)
    replaced: list[Any] = []

    def fused(name: Any, func: relax.Function) -> relax.Function:
        calls = Calls(analyzed, name, func, flat_maps)
        return _FlatMapFusion(builder, calls, rows_writer, replaced).function(func)

    fused_mod = map_functions(mod, fused, builder)
    return drop_unused_kernels(fused_mod, replaced) if replaced else mod


def _is_view(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel has one argument, and gives it another shape."""
    first, last = kernel.params[0], kernel.params[-1]
    is_reshape = len(kernel.params) == 2 and bool(relax.analysis.has_reshape_pattern(kernel))
    return is_reshape and not tvm_ffi.structural_equal(list(first.shape), list(last.shape))


class _Loop:
    """Calls of flat maps that are to run in one loop.

    Attributes
    ----------
    members : list of Member
        The calls, in order of execution.
    length : int
        The number of elements of each tensor.
    """

    def __init__(self, members: list[Member]):
        self.members = members
        self.length = members[0].call.kernel.length
        self._reads = frozenset().union(*(member.touched.reads for member in members))
        self._writes = frozenset().union(*(member.touched.writes for member in members))
        self._tensors = frozenset().union(*(member.call.tensors for member in members))

    def clashes(self, touched: Touched) -> bool:
        """Whether a call has to keep its order with one of the members."""
        return touched.clashes(Touched(self._reads, self._writes))

    def shares(self, call: Call) -> bool:
        """Whether a call shares a tensor with the members, and its tensors have the same length."""
        return self.length == call.kernel.length and not self._tensors.isdisjoint(call.tensors)


class _Run:
    """A run of bindings, whose calls of flat maps may as well all be made at its end.

    Attributes
    ----------
    bindings : list
        All of the run's bindings, in order.
    loops : list of _Loop
        The calls of flat maps. No loop accesses memory that another one writes, so loops can run in
        any order.
    """

    def __init__(self, calls: Calls):
        self._calls = calls
        self.bindings: list[Any] = []
        self.loops: list[_Loop] = []

    def takes(self, binding: Any) -> bool:
        """Append a binding if the run stays one; return whether it does."""
        member = self._calls.member(binding)
        fits = self._passes(binding) if member is None else self._add_to_loop(member)
        if fits:
            self.bindings.append(binding)
        return fits

    def _passes(self, binding: Any) -> bool:
        """Whether the flat maps so far may as well be called after a binding."""
        touched = self._calls.touched(binding)
        return self._calls.is_harmless(binding) and not any(
            loop.clashes(touched) for loop in self.loops
        )

    def _add_to_loop(self, member: Member) -> bool:
        """Put a flat map into the loop that it belongs to; return False if it fits none."""
        clashing = [loop for loop in self.loops if loop.clashes(member.touched)]
        sharing = [loop for loop in self.loops if loop.shares(member.call)]
        # Loops with which the call clashes have to be joined with it, or the order would change.
        # Those that only share tensors are joined too, if all together are sound.
        for joined in ([*clashing, *(loop for loop in sharing if loop not in clashing)], clashing):
            members = [*(earlier for loop in joined for earlier in loop.members), member]
            members.sort(key=self._calls.position)
            if self._is_sound(members):
                self.loops = [loop for loop in self.loops if loop not in joined]
                self.loops.append(_Loop(members))
                return True
        return False

    def _is_sound(self, members: list[Member]) -> bool:
        """Whether calls can run in one loop.

        Where written memory is shared, it is by one tensor, element by element.
        """
        if len({member.call.kernel.length for member in members}) > 1:
            return False
        chain = Chain([member.call for member in members])
        region = self._calls.region
        regions = [region(cell.number) for cell in chain.cells]
        scalars = {region(number) for number in chain.scalars}
        written = {r for cell, r in zip(chain.cells, regions, strict=True) if cell.results}
        are_disjoint = all(a != b or a not in written for a, b in combinations(regions, 2))
        # A scalar is read once, before the loop, so the loop must not write it.
        return are_disjoint and not scalars & written and len(chain.cells) <= _MAX_CELLS


@dataclass(frozen=True)
class _Row:
    """A loop's members with their formula: one row of a kernel's table of tensors.

    Attributes
    ----------
    members : list of Member
    formula : Formula
    cells : list of Cell
    """

    members: list[Member]
    formula: Formula
    cells: list[Cell]


class _FlatMapFusion:
    """The fusion of the flat maps of one Relax function.

    Parameters
    ----------
    builder : BlockBuilder
        Receives the kernels.
    calls : Calls
        Of the function.
    writer : RowsWriter
    replaced : list of GlobalVar
        Receives the kernels that are called no more.
    """

    def __init__(
        self,
        builder: relax.BlockBuilder,
        calls: Calls,
        writer: RowsWriter,
        replaced: list[Any],
    ):
        self._writer = writer
        self._builder = builder
        self._calls = calls
        self._replaced = replaced

    def function(self, func: relax.Function) -> relax.Function:
        """The function with its flat maps fused."""
        before = len(self._replaced)
        body = rebuilt(func.body, block=self._changed)
        return replace_body(func, body) if len(self._replaced) > before else func

    def _changed(self, block: Any) -> list[Any]:
        """A block with its flat maps fused."""
        kind = relax.DataflowVar if isinstance(block, relax.DataflowBlock) else relax.Var
        bindings: list[Any] = []
        run = _Run(self._calls)
        for binding in block.bindings:
            # A run ends where a binding does not fit, which may begin the next one.
            if not run.takes(binding):
                bindings += self._ended(run, kind)
                run = _Run(self._calls)
                if not run.takes(binding):
                    bindings.append(binding)
        bindings += self._ended(run, kind)
        return [replace_bindings(block, bindings)]

    def _ended(self, run: _Run, kind: type) -> list[Any]:
        """The bindings of a run, in which one call at the end replaces several where it can."""
        replaced_vars: set[Any] = set()
        calls: list[Any] = []
        for rows in _group_by_formula([self._row(loop) for loop in run.loops]):
            members = [member for row in rows for member in row.members]
            # A call that has found no other stays where it is.
            if len(members) > 1:
                replaced_vars.update(member.binding.var for member in members)
                self._replaced += [member.binding.value.args[0] for member in members]
                for batch in _batches(rows, self._writer.max_tensors):
                    calls += self._one_call(batch, kind)
        return [*(binding for binding in run.bindings if binding.var not in replaced_vars), *calls]

    def _row(self, loop: _Loop) -> _Row:
        """The formula of a loop's members, and its cells."""
        chain = Chain([member.call for member in loop.members])
        uses_inside = Counter(number for call in chain.calls for number in call.arguments)
        # Only results that are used outside of the chain too are stored.
        formula, cells = chain.formula(
            lambda number: self._calls.uses(number) > uses_inside[number]
        )
        return _Row(loop.members, formula, cells)

    def _one_call(self, rows: Sequence[_Row], kind: type) -> list[Any]:
        """The bindings that call one kernel for rows of equal formulas and name its results."""
        formula, tensor = rows[0].formula, self._calls.tensor
        if not formula.stores:
            return []  # Nothing reads what these rows compute.
        scalars = [tensor(number) for number in formula.scalars]
        argument_cells = [cell for row in rows for cell in row.cells[: formula.argument_count]]
        cell_tensors = [
            tensor(cell.argument) for cell in argument_cells if cell.argument is not None
        ]
        stored_cells = [row.cells[cell] for row in rows for cell, _ in formula.stores]
        shapes = [[self._calls.shape(cell.number) for cell in row.cells] for row in rows]
        kernel = self._writer.kernel_of(
            formula, shapes, [str(scalar.ty.dtype) for scalar in scalars]
        )
        last = rows[-1].members[-1].binding
        name = self._builder.add_func(kernel, f"{last.value.args[0].name_hint}_horizontal")
        argument_positions = {id(cell): len(scalars) + i for i, cell in enumerate(argument_cells)}
        # -1 stands for a result in memory of its own.
        inplace_indices = [argument_positions.get(id(cell), -1) for cell in stored_cells]
        results = [tensor(cell.results[-1]) for cell in stored_cells]
        arguments = relax.Tuple([*scalars, *cell_tensors])
        # The results keep the variables that the function's other bindings read.
        call = _call(name, arguments, inplace_indices, [var.ty for var in results])
        if len(results) == 1:
            return [relax.VarBinding(results[0], self._builder.normalize(call), last.span)]
        result_tuple = kind("results", relax.TupleType([var.ty for var in results]))
        return [
            relax.VarBinding(result_tuple, self._builder.normalize(call), last.span),
            *(
                relax.VarBinding(var, relax.TupleGetItem(result_tuple, index))
                for index, var in enumerate(results)
            ),
        ]


def _call(name: Any, arguments: Any, indices: list[int], types: list[Any]) -> Any:
    """The call of a kernel that overwrites the arguments at some indices, by result; -1 is none."""
    result = types if len(types) > 1 else types[0]
    if set(indices) == {-1}:
        return relax.call_tir(name, arguments, result)
    return relax.op.call_tir_inplace(name, arguments, indices, result)


def _group_by_formula(rows: list[_Row]) -> list[list[_Row]]:
    """Rows grouped by equal formulas; each group keeps their order."""
    groups: list[list[_Row]] = []
    for row in rows:
        for group in groups:
            if row.formula.is_like(group[0].formula):
                group.append(row)
                break
        else:
            groups.append([row])
    return groups


def _batches(rows: list[_Row], max_tensors: int) -> Iterator[list[_Row]]:
    """Yield rows in batches of about the same size, each with few enough tensors for a kernel."""
    max_rows = max(max_tensors // max(len(rows[0].cells), 1), 1)
    count = -(-len(rows) // max_rows)
    for batch in range(count):
        yield rows[batch * len(rows) // count : (batch + 1) * len(rows) // count]
