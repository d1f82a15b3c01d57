"""Whether a kernel may write an output over one of its inputs, and the kernel that does so."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import gcd
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym.iter_affine_map import IterMapLevel

from ..ir.kernel_rewrite import replace_realized
from ..ir.kernel_structure import Load, statements_of, static, substitute_values
from ..ir.loops import sequence
from ..ir.visits import replace_nodes, visit_nodes


def may_overwrite(kernel: tirx.PrimFunc, donated: Any, output: Any) -> bool:
    """Whether `output` may live in the memory of `donated`, both parameters of `kernel`.

    It may if one statement stores every element of the output first, each once; if that statement
    reads of the input no more than the element that it stores; and if all other reads of the input
    are in loops that have ended before. Several statements will do that one after the other store
    parts of the output, of different remainders of an index.
    """
    if not isinstance(kernel.body, SBlockRealize) or not _is_plain(kernel, output):
        return False
    if not _is_only_loaded(kernel, donated):
        return False
    sites = _sites(kernel.body, donated, output)
    if not sites or any(_loads(statement, output) for s in sites for statement in s.until):
        return False
    here = [(load, site) for site in sites for node in site.scope for load in _loads(node, donated)]
    earlier = sum(len(_loads(statement, donated)) for statement in sites[0].before)
    return (
        all(_same_indices(load, site.store) for load, site in here)
        and len(here) + earlier == len(_loads(kernel.body, donated))
        and all(site.stores_once() for site in sites)
        and all(a.is_apart_from(b) for a, b in combinations(sites, 2))
    )


def overwriting(kernel: tirx.PrimFunc, shared: dict[Any, Any]) -> tirx.PrimFunc:
    """The kernel with each output of `shared` replaced by its input, as one parameter.

    Two parameters that share memory would break the promise that none overlap, by which the code
    generator reorders reads and writes. What copied the input to the output is gone.
    """
    body = substitute_values(kernel.body, shared)
    params = [param for param in kernel.params if param not in shared]
    return tirx.PrimFunc(params, _drop_identity_stores(body), kernel.ret_type, attrs=kernel.attrs)


@dataclass
class _Site:
    """Where an output is stored first.

    Attributes
    ----------
    loops : list of For
        Around the store, outermost first, without those of one trip.
    threads : set of str
        Which threads of a GPU these, and those of one trip, are.
    condition : Expr
        Under which the store is made: the threads of a GPU come in whole blocks, and those beyond
        the last element do nothing.
    values : dict
        What the variables of the blocks around the store, and of loops of one trip, are.
    before : list of Stmt
        What has ended before any element is stored.
    until : list of Stmt
        What may run before all elements are stored: `before`, and the store's own loops, the last.
    scope : list of Stmt
        What runs right before the store in the same iteration of all loops, and the store.
    store : BufferStore
    """

    loops: list[Any]
    threads: set[str | None]
    condition: Any
    values: dict[Any, Any]
    before: list[Any]
    until: list[Any]
    scope: list[Any]
    store: Any

    def stores_once(self) -> bool:
        """Whether no element is stored twice, and every one is."""
        return self._has_all_threads() and self._is_bijective()

    def _has_all_threads(self) -> bool:
        """Whether all threads of a kernel are in loops of the store: no two do the same."""
        found: set[str | None] = set()
        nest = self.until[-1]
        visit_nodes(nest, tirx.For, lambda loop: found.add(_thread(loop)))
        return found <= self.threads | {None}

    def is_apart_from(self, other: _Site) -> bool:
        """Whether remainders tell that no element is stored here and there."""
        for (a, x), (b, y) in zip(self._remainders(), other._remainders(), strict=True):
            common = gcd(a, b)  # 0 where both are constants
            if (x - y) % common if common else x != y:
                return True
        return False

    def _indices(self) -> list[Any]:
        return [_simplified(substitute_values(index, self.values)) for index in self.store.indices]

    def _remainders(self) -> list[tuple[int, int]]:
        """For each index a divisor, and the remainder that it always has."""
        sets = [tvm.sym.Analyzer().modular_set(index) for index in self._indices()]
        return [(int(found.coeff), int(found.base)) for found in sets]

    def _quotients(self) -> list[Any]:
        """The indices without what all of their values have in common."""
        return [
            _simplified(tirx.floordiv(index - remainder, divisor)) if divisor > 1 else index
            for index, (divisor, remainder) in zip(self._indices(), self._remainders(), strict=True)
        ]

    def _is_bijective(self) -> bool:
        indices = [index for index in self._quotients() if not isinstance(index, tirx.IntImm)]
        names = [loop.loop_var for loop in self.loops]
        if not names:
            return not indices
        plain = all(any(index.same_as(name) for name in names) for index in indices)
        if plain and static(_simplified(self.condition)) == 1:
            each_once = [sum(index.same_as(name) for index in indices) == 1 for name in names]
            return all(each_once) and len(indices) == len(names)
        ranges = [Range.from_min_extent(loop.min, loop.extent) for loop in self.loops]
        found = tvm.sym.detect_iter_map(
            indices,
            dict(zip(names, ranges, strict=True)),
            _simplified(self.condition),
            check_level=IterMapLevel.Bijective,
        )
        return len(found.indices) > 0


def _sites(body: SBlockRealize, donated: Any, output: Any) -> list[_Site] | None:
    """Where an output is stored until the input is read no more; None if that is complex."""
    first = _first_store(body, output)
    if first is None:
        return None
    sites = [first]
    statements = statements_of(body.block.body)
    storing = [i for i, statement in enumerate(statements) if _stores(statement, output)]
    reading = [i for i, statement in enumerate(statements) if _loads(statement, donated)]
    for i in storing[1:]:
        if i > max(reading, default=0):
            break
        site = _first_store(statements[i], output)
        if site is None or len(_stores(statements[i], output)) > 1:
            return None
        site.until[:0] = statements[:i]
        sites.append(site)
    return sites


def _first_store(body: Any, output: Any) -> _Site | None:
    """Where an output is stored first; None if that is no simple place."""
    loops: list[Any] = []
    threads: set[str | None] = set()
    condition: Any = tirx.const(True, "bool")
    values: dict[Any, Any] = {}
    before: list[Any] = []
    scope: list[Any] = []
    outermost = node = body
    while not isinstance(node, tirx.BufferStore):
        if isinstance(node, tirx.SeqStmt):
            storing = [i for i, statement in enumerate(node.seq) if _stores(statement, output)]
            if len(storing) > 1 and loops:
                return None  # the others store while this one has elements left
            scope = list(node.seq[: storing[0]])
            node = node.seq[storing[0]]
            if not loops:
                before, scope = [*before, *scope], []
                outermost = node
        elif isinstance(node, tirx.For):
            threads.add(_thread(node))
            if static(node.extent) == 1:
                values[node.loop_var] = substitute_values(node.min, values)
            else:
                loops.append(node)
                scope = []
            node = node.body
        elif isinstance(node, tirx.IfThenElse) and node.else_case is None:
            condition = tirx.And(condition, substitute_values(node.condition, values))
            node = node.then_case
        elif isinstance(node, SBlockRealize) and node.block.init is None:
            block = node.block
            condition = tirx.And(condition, substitute_values(node.predicate, values))
            bound = zip(block.iter_vars, node.iter_values, strict=True)
            values.update({v.var: substitute_values(value, values) for v, value in bound})
            node = block.body
        else:
            return None
    until = [*before, outermost]
    return _Site(loops, threads, condition, values, before, until, [*scope, node], node)


def _thread(loop: Any) -> str | None:
    return None if loop.thread_binding is None else str(loop.thread_binding.thread_tag)


def _drop_identity_stores(body: Any) -> Any:
    """A statement without what stores elements where they were; itself if all is that."""
    nothing = tirx.Evaluate(0)

    def is_nothing(statement: Any) -> bool:
        return isinstance(statement, tirx.Evaluate) and static(statement.value) is not None

    def visit(node: Any) -> Any:
        if isinstance(node, tirx.SeqStmt):
            rest = [statement for statement in node.seq if not is_nothing(statement)]
            return sequence(*rest)
        if isinstance(node, tirx.BufferStore):
            value = node.value
            copies = isinstance(value, Load) and value.source.same_as(node.buffer)
            return nothing if copies and _same_indices(value, node) else node
        inner = node.body if isinstance(node, tirx.For) else node.block.body
        return nothing if is_nothing(inner) else node

    kinds = (tirx.SeqStmt, tirx.BufferStore, tirx.For, SBlockRealize)
    rest = replace_nodes(body.block.body, kinds, visit)
    if is_nothing(rest):
        return body
    return replace_realized(body, body=rest)


def _is_only_loaded(kernel: tirx.PrimFunc, buffer: Any) -> bool:
    """Whether a buffer is only loaded from: not stored to, its address not taken."""
    return _is_plain(kernel, buffer) and not _stores(kernel.body, buffer)


def _is_plain(kernel: tirx.PrimFunc, buffer: Any) -> bool:
    """Whether all that happens to a buffer are loads and stores that name it."""
    mentions = 0
    regions = 0
    matched = False

    def visit(node: Any) -> None:
        nonlocal mentions, regions, matched
        if isinstance(node, tvm.ir.Var):
            mentions += node.same_as(buffer)
        elif isinstance(node, tvm.ir.TensorRegion):
            regions += node.source.same_as(buffer)
        elif isinstance(node, SBlock):
            matched = matched or bool(node.match_buffers)

    tvm_ffi.structural_walk(kernel.body, visit)
    accesses = len(_loads(kernel.body, buffer)) + len(_stores(kernel.body, buffer))
    return not matched and mentions == regions + accesses


def _loads(node: Any, buffer: Any) -> list[Any]:
    found: list[Any] = []

    def visit(load: Any) -> None:
        if load.source.same_as(buffer):
            found.append(load)

    visit_nodes(node, Load, visit)
    return found


def _stores(node: Any, buffer: Any) -> list[Any]:
    found: list[Any] = []

    def visit(store: Any) -> None:
        if store.buffer.same_as(buffer):
            found.append(store)

    visit_nodes(node, tirx.BufferStore, visit)
    return found


def _same_indices(load: Any, store: Any) -> bool:
    return len(load.indices) == len(store.indices) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(load.indices, store.indices, strict=True)
    )


def _simplified(expression: Any) -> Any:
    return tvm.sym.Analyzer().simplify(expression)
