"""Flat maps that follow each other, in few kernels: one loop in parallel for all that are alike.

The update of a network moves each parameter by a few maps over its elements, and each statistic by
one. Here the maps that share tensors become one loop, and loops that do the same to different
tensors become one kernel over all of them.

Calls are joined only where no kernel of some size is called between them, so that nothing is kept
much longer than it was; and only where no call writes what another one, with which it changes
places, reads or writes.
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
from ....ir.rewrite import map_kernels, rebuilt, replace_bindings, replace_body
from .calls import FLAT, Calls, Member, Touched
from .chain import Call, Cell, Chain, Formula
from .flat import FlatMap, flat_map
from .kernel import kernel_of

_MAX_TENSORS = 64
"""Of a kernel. LLVM takes a millisecond to compile what finds each, and more if there are many."""

_MAX_CELLS = 16
"""Tensors of a chain: a loop over more is no faster than two."""


@compiler_pass(
    Phase.FUSED,
    targets=("llvm",),
    provides="flat_maps",
    after={
        "fuse_accumulation": "what is marked must not become another kernel",
        "copy_overlaps": "copies are flat maps too",
    },
    because="schedules hide what a map does",
)
def mark_flat_maps(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[int, FlatMap]]:
    """Mark flat maps, equal ones alike, and tell what each does."""
    known: dict[int, FlatMap] = {}
    seen: dict[int, list[tuple[tirx.PrimFunc, int]]] = {}

    def marked(_: Any, func: tirx.PrimFunc) -> tirx.PrimFunc:
        found = flat_map(func)
        if found is None:
            return func
        same = seen.setdefault(tvm_ffi.structural_hash(func), [])
        number = next((n for f, n in same if tvm_ffi.structural_equal(f, func)), len(known))
        same.append((func, number))
        known.setdefault(number, found)
        return func.with_attr(FLAT, number)

    return map_kernels(mod, marked), known


@compiler_pass(
    Phase.DONATED,
    targets=("llvm",),
    because="donation has decided which results overwrite arguments",
)
def fuse_horizontally(mod: tvm.IRModule, flat_maps: dict[int, FlatMap]) -> tvm.IRModule:
    """Make one kernel of flat maps that follow each other.

    Parameters
    ----------
    mod : IRModule
    flat_maps : dict
        What the marked kernels do.
    """
    for name, func in list(mod.functions.items()):
        if flat_maps and isinstance(func, relax.Function):
            mod = _FlatMapFusion(mod, name, func, flat_maps).module()
    return mod


class _Loop:
    """Flat maps that are to run in one loop.

    Attributes
    ----------
    members : list of Member
        In order of execution.
    length : int
        Elements of each tensor.
    """

    def __init__(self, members: list[Member]):
        self.members = members
        self.length = members[0].call.kernel.length
        self._reads = frozenset().union(*(member.touched.reads for member in members))
        self._writes = frozenset().union(*(member.touched.writes for member in members))
        self._tensors = frozenset().union(*(member.call.tensors for member in members))

    def clashes(self, touched: Touched) -> bool:
        """Whether a call may not change places with these."""
        return touched.clashes(Touched(self._reads, self._writes))

    def shares(self, call: Call) -> bool:
        """Whether a call is on tensors of these, of the same length."""
        return self.length == call.kernel.length and not self._tensors.isdisjoint(call.tensors)


class _Run:
    """Bindings that follow each other, among them flat maps that may as well be called at its end.

    Attributes
    ----------
    bindings : list
        All of them, in order.
    loops : list of _Loop
        No two of them touch memory that one of them writes.
    """

    def __init__(self, calls: Calls):
        self._calls = calls
        self.bindings: list[Any] = []
        self.loops: list[_Loop] = []

    def takes(self, binding: Any) -> bool:
        """Take a binding in, if it may follow those that there are."""
        member = self._calls.member(binding)
        taken = self._passes(binding) if member is None else self._places(member)
        if taken:
            self.bindings.append(binding)
        return taken

    def _passes(self, binding: Any) -> bool:
        """Whether the flat maps so far may as well be called behind a binding."""
        touched = self._calls.touched(binding)
        return self._calls.is_harmless(binding) and not any(
            loop.clashes(touched) for loop in self.loops
        )

    def _places(self, member: Member) -> bool:
        """Put a flat map into the loop that it belongs to; return False if it fits none."""
        bound = [loop for loop in self.loops if loop.clashes(member.touched)]
        sharing = [loop for loop in self.loops if loop.shares(member.call)]
        for joined in ([*bound, *(loop for loop in sharing if loop not in bound)], bound):
            members = [*(other for loop in joined for other in loop.members), member]
            members.sort(key=self._calls.position)
            if self._is_sound(members):
                self.loops = [loop for loop in self.loops if loop not in joined]
                self.loops.append(_Loop(members))
                return True
        return False

    def _is_sound(self, members: list[Member]) -> bool:
        """Whether calls can run in one loop: what shares memory is one tensor."""
        if len({member.call.kernel.length for member in members}) > 1:
            return False
        chain = Chain([member.call for member in members])
        region = self._calls.region
        regions = [region(cell.number) for cell in chain.cells]
        scalars = {region(number) for number in chain.scalars}
        written = {r for cell, r in zip(chain.cells, regions, strict=True) if cell.results}
        apart = all(a != b or a not in written for a, b in combinations(regions, 2))
        return apart and not scalars & written and len(chain.cells) <= _MAX_CELLS


@dataclass(frozen=True)
class _Row:
    """A loop over the tensors of a row.

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
    """One Relax function, its flat maps on the way into few kernels."""

    def __init__(
        self, mod: tvm.IRModule, name: Any, func: relax.Function, known: dict[int, FlatMap]
    ):
        self._mod, self._name, self._func = mod, name, func
        self._builder = relax.BlockBuilder(mod)
        self._calls = Calls(mod, name, func, known)
        self._replaced: list[Any] = []

    def module(self) -> tvm.IRModule:
        """The module with the function's flat maps together."""
        body = rebuilt(self._func.body, block=self._changed)
        if not self._replaced:
            return self._mod
        self._builder.update_func(self._name, replace_body(self._func, body))
        return drop_unused_kernels(self._builder.get(), self._replaced)

    def _changed(self, block: Any) -> list[Any]:
        """A block with its flat maps together."""
        kind = relax.DataflowVar if isinstance(block, relax.DataflowBlock) else relax.Var
        bindings: list[Any] = []
        run = _Run(self._calls)
        for binding in block.bindings:
            if not run.takes(binding):
                bindings += self._ended(run, kind)
                run = _Run(self._calls)
                if not run.takes(binding):
                    bindings.append(binding)
        bindings += self._ended(run, kind)
        return [replace_bindings(block, bindings)]

    def _ended(self, run: _Run, kind: type) -> list[Any]:
        """The bindings of a run, with one call in the place of several where that is so."""
        gone: set[Any] = set()
        calls: list[Any] = []
        for rows in _group_by_formula([self._row(loop) for loop in run.loops]):
            members = [member for row in rows for member in row.members]
            if len(members) > 1:
                gone.update(member.binding.var for member in members)
                self._replaced += [member.binding.value.args[0] for member in members]
                for batch in _batches(rows):
                    calls += self._together(batch, kind)
        return [*(b for b in run.bindings if b.var not in gone), *calls]

    def _row(self, loop: _Loop) -> _Row:
        chain = Chain([member.call for member in loop.members])
        inside = Counter(number for call in chain.calls for number in call.arguments)
        formula, cells = chain.formula(lambda number: self._calls.uses(number) > inside[number])
        return _Row(loop.members, formula, cells)

    def _together(self, rows: Sequence[_Row], kind: type) -> list[Any]:
        """The call of one kernel for rows that are alike, and what its results are."""
        formula, tensor = rows[0].formula, self._calls.tensor
        if not formula.stores:
            return []  # nothing reads what these rows make
        scalars = [tensor(number) for number in formula.scalars]
        given = [cell for row in rows for cell in row.cells[: formula.given]]
        held = [tensor(cell.argument) for cell in given if cell.argument is not None]
        written = [row.cells[cell] for row in rows for cell, _ in formula.stores]
        shapes = [[self._calls.shape(cell.number) for cell in row.cells] for row in rows]
        kernel = kernel_of(formula, shapes, [str(s.ty.dtype) for s in scalars])
        last = rows[-1].members[-1].binding
        name = self._builder.add_func(kernel, f"{last.value.args[0].name_hint}_together")
        places = {id(cell): len(scalars) + i for i, cell in enumerate(given)}
        indices = [places.get(id(cell), -1) for cell in written]
        results = [tensor(cell.results[-1]) for cell in written]
        arguments = relax.Tuple([*scalars, *held])
        call = _call(name, arguments, indices, [var.ty for var in results])
        if len(results) == 1:
            return [relax.VarBinding(results[0], self._builder.normalize(call), last.span)]
        whole = kind("together", relax.TupleType([var.ty for var in results]))
        return [
            relax.VarBinding(whole, self._builder.normalize(call), last.span),
            *(
                relax.VarBinding(var, relax.TupleGetItem(whole, index))
                for index, var in enumerate(results)
            ),
        ]


def _call(name: Any, arguments: Any, indices: list[int], types: list[Any]) -> Any:
    """The call of a kernel that overwrites the arguments at some indices."""
    result = types if len(types) > 1 else types[0]
    if set(indices) == {-1}:
        return relax.call_tir(name, arguments, result)
    return relax.op.call_tir_inplace(name, arguments, indices, result)


def _group_by_formula(rows: list[_Row]) -> list[list[_Row]]:
    """Rows in groups of equal formulas, each in order."""
    groups: list[list[_Row]] = []
    for row in rows:
        for group in groups:
            if row.formula.is_like(group[0].formula):
                group.append(row)
                break
        else:
            groups.append([row])
    return groups


def _batches(rows: list[_Row]) -> Iterator[list[_Row]]:
    """Yield rows in batches of about the same size, each few enough for a kernel."""
    most = max(_MAX_TENSORS // max(len(rows[0].cells), 1), 1)
    count = -(-len(rows) // most)
    for i in range(count):
        yield rows[i * len(rows) // count : (i + 1) * len(rows) // count]
