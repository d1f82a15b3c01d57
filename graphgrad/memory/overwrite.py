"""Whether a kernel may write an output over one of its inputs, and the kernel that does so.

The proof is by the order of statements: an element of the input must not be read after the element
of the output at its position has been stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from math import gcd
from typing import Any, NamedTuple

import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym.iter_affine_map import IterMapLevel

from ..ir.kernel_rewrite import replace_realized
from ..ir.kernel_structure import Load, same_indices, statements_of, static, substitute_values, uses
from ..ir.loops import sequence
from ..ir.visits import nodes_in, replace_nodes


def may_overwrite(kernel: tirx.PrimFunc, donated: Any, output: Any) -> bool:
    """Whether `output` may live in the memory of `donated`, both parameters of `kernel`.

    It may if all of these hold:

    - One statement, the *site*, stores every element of the output once, before anything else
      stores to the output or reads it.
    - Together with what runs right before it in the same iteration, the site reads no element of
      the input but the one at the indices that it stores to.
    - All other reads of the input have ended before the loops of the site begin.

    Instead of one site there may be several, one after the other, if an index of the output has a
    different remainder at each, so that they store different elements. Or sites anywhere, if each
    reads its own element of the input alone, and nothing else reads any (`_is_pointwise`).
    """
    kernel = _without_prefetches(kernel)
    if not isinstance(kernel.body, SBlockRealize) or not _is_plain(kernel, output):
        return False
    if not _is_only_loaded(kernel, donated):
        return False
    if _is_pointwise(kernel, donated, output):
        return True
    sites = _sites(kernel.body, donated, output)
    if not sites or any(_loads(stmt, output) for site in sites for stmt in site.until):
        return False
    at_sites = [
        (load, site) for site in sites for node in site.scope for load in _loads(node, donated)
    ]
    earlier = sum(len(_loads(statement, donated)) for statement in sites[0].before)
    return (
        all(same_indices(load, site.store) for load, site in at_sites)
        # No load is left that is neither at a site nor before all of them.
        and len(at_sites) + earlier == len(_loads(kernel.body, donated))
        and all(site.stores_once() for site in sites)
        and all(a.is_apart_from(b) for a, b in combinations(sites, 2))
    )


def _is_pointwise(kernel: tirx.PrimFunc, donated: Any, output: Any) -> bool:
    """Whether each element of the input is read only by the one store of that of the output.

    Stores may be many, as of the vectors of a row and of what is left of it.
    """
    stores = _stores(kernel.body, output)
    loads = [(load, store) for store in stores for load in _loads(store.value, donated)]
    if (
        any(map(_thread, nodes_in(kernel.body, tirx.For)))
        or _loads(kernel.body, output)
        or len(loads) != len(_loads(kernel.body, donated))
        or not all(same_indices(load, store) for load, store in loads)
    ):
        return False
    places = list(_places(kernel.body, output, (), {}))
    return (
        len(places) == len(stores)
        and all(map(_stores_once, places))
        and all(_are_apart(a, b) for a, b in combinations(places, 2))
    )


class _Place(NamedTuple):
    """A store: the loops around it, and its indices in terms of these."""

    loops: tuple[Any, ...]
    indices: list[Any]

    @property
    def bounds(self) -> list[Any]:
        """The least and the greatest value of each index."""
        analyzer = tvm.sym.Analyzer()
        for loop in self.loops:
            analyzer.bind(loop.loop_var, Range.from_min_extent(loop.min, loop.extent))
        return [analyzer.const_int_bound(index) for index in self.indices]


def _places(
    node: Any, buffer: Any, loops: tuple[Any, ...], values: dict[Any, Any]
) -> Iterator[_Place]:
    """Yield the stores to a buffer in loops and blocks; those in anything else are left out."""
    if isinstance(node, tirx.BufferStore) and node.buffer.same_as(buffer):
        yield _Place(loops, [_simplified(substitute_values(i, values)) for i in node.indices])
    elif isinstance(node, tirx.SeqStmt):
        for part in node.seq:
            yield from _places(part, buffer, loops, values)
    elif isinstance(node, tirx.For):
        inner = (*loops, node)
        if static(node.extent) == 1:
            inner, values = loops, {**values, node.loop_var: substitute_values(node.min, values)}
        yield from _places(node.body, buffer, inner, values)
    elif isinstance(node, SBlockRealize) and node.block.init is None:
        bound = zip(node.block.iter_vars, node.iter_values, strict=True)
        own = {axis.var: substitute_values(value, values) for axis, value in bound}
        yield from _places(node.block.body, buffer, loops, {**values, **own})


def _stores_once(place: _Place) -> bool:
    """Whether different iterations of the loops around a store store different elements."""
    least = [bound.min_value for bound in place.bounds]
    indices = [_simplified(i - n) for i, n in zip(place.indices, least, strict=True)]
    indices = [index for index in indices if not isinstance(index, tirx.IntImm)]
    loops = {loop.loop_var: Range.from_min_extent(loop.min, loop.extent) for loop in place.loops}
    true = tirx.const(True, "bool")
    level = IterMapLevel.Bijective
    found = tvm.sym.detect_iter_map(indices, loops, true, check_level=level)
    return not loops or len(found.indices) > 0


def _are_apart(a: _Place, b: _Place) -> bool:
    """Whether two stores store different elements, because ranges of an index are apart."""
    pairs = zip(a.bounds, b.bounds, strict=True)
    return any(x.max_value < y.min_value or y.max_value < x.min_value for x, y in pairs)


def overwriting(kernel: tirx.PrimFunc, shared: dict[Any, Any]) -> tirx.PrimFunc:
    """The kernel with each output of `shared` replaced by its input, as one parameter.

    Two parameters that share memory would break the promise that none do (`noalias`), by which the
    code generator reorders reads and writes. Stores that would copy the input to the output are
    dropped.
    """
    body = substitute_values(kernel.body, shared)
    params = [param for param in kernel.params if param not in shared]
    return tirx.PrimFunc(params, _drop_identity_stores(body), kernel.ret_type, attrs=kernel.attrs)


@dataclass
class _Site:
    """The statement that stores an output first, and what runs before it.

    Attributes
    ----------
    loops : list of For
        The loops around the store, outermost first, without those of one trip.
    threads : set of str or None
        The thread tags (such as ``"threadIdx.x"``) of these loops and those of one trip; None of a
        loop that is bound to no threads.
    condition : Expr
        The condition under which the store is made: the threads of a GPU come in whole blocks, and
        those beyond the last element do nothing.
    values : dict
        The values of the variables of blocks around the store, and of loops of one trip.
    before : list of Stmt
        The statements that have ended before any element is stored.
    until : list of Stmt
        The statements that may run before all elements are stored: `before`, and behind these the
        loop nest of the store.
    scope : list of Stmt
        The statements that run right before the store, in the same iteration of all loops, and the
        store itself as the last.
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
        """Whether every loop over threads in the nest is a loop around the store.

        Otherwise the threads of another loop would all make the same store.
        """
        thread_tags = {_thread(loop) for loop in nodes_in(self.until[-1], tirx.For)}
        return thread_tags <= self.threads | {None}

    def is_apart_from(self, other: _Site) -> bool:
        """Whether remainders of an index prove that two sites store different elements."""
        for (divisor, remainder), (other_divisor, other_remainder) in zip(
            self._remainders(), other._remainders(), strict=True
        ):
            common = gcd(divisor, other_divisor)  # 0 where both are constants
            if (remainder - other_remainder) % common if common else remainder != other_remainder:
                return True
        return False

    def _indices(self) -> list[Any]:
        return [_simplified(substitute_values(index, self.values)) for index in self.store.indices]

    def _remainders(self) -> list[tuple[int, int]]:
        """For each index a divisor, and the remainder that all its values have.

        The divisor of a constant is 0, and its remainder the constant.
        """
        sets = [tvm.sym.Analyzer().modular_set(index) for index in self._indices()]
        return [(int(modular_set.coeff), int(modular_set.base)) for modular_set in sets]

    def _quotients(self) -> list[Any]:
        """The indices, each without its constant remainder and divided by its divisor."""
        return [
            _simplified(tirx.floordiv(index - remainder, divisor)) if divisor > 1 else index
            for index, (divisor, remainder) in zip(self._indices(), self._remainders(), strict=True)
        ]

    def _is_bijective(self) -> bool:
        """Whether the iterations of the loops store to different elements, without gaps."""
        indices = [index for index in self._quotients() if not isinstance(index, tirx.IntImm)]
        loop_vars = [loop.loop_var for loop in self.loops]
        if not loop_vars:
            return not indices
        # The common case, indices that are loop variables, is decided without the costly analysis.
        plain = all(any(index.same_as(loop_var) for loop_var in loop_vars) for index in indices)
        if plain and static(_simplified(self.condition)) == 1:
            each_once = [
                sum(index.same_as(loop_var) for index in indices) == 1 for loop_var in loop_vars
            ]
            return all(each_once) and len(indices) == len(loop_vars)
        ranges = [Range.from_min_extent(loop.min, loop.extent) for loop in self.loops]
        iter_map = tvm.sym.detect_iter_map(
            indices,
            dict(zip(loop_vars, ranges, strict=True)),
            _simplified(self.condition),
            check_level=IterMapLevel.Bijective,
        )
        return len(iter_map.indices) > 0


def _sites(body: SBlockRealize, donated: Any, output: Any) -> list[_Site] | None:
    """The sites that store an output while the input may still be read; None if that is not clear.

    A statement behind the last read of the input may store what it likes.
    """
    first = _first_store(body, output)
    if first is None:
        return None
    sites = [first]
    statements = statements_of(body.block.body)
    storing = [number for number, statement in enumerate(statements) if _stores(statement, output)]
    reading = [number for number, statement in enumerate(statements) if _loads(statement, donated)]
    for number in storing[1:]:
        if number > max(reading, default=0):
            break
        site = _first_store(statements[number], output)
        if site is None or len(_stores(statements[number], output)) > 1:
            return None
        site.until[:0] = statements[:number]
        sites.append(site)
    return sites


def _first_store(body: Any, output: Any) -> _Site | None:
    """The first statement in `body` that stores an output; None if it is not found surely."""
    loops: list[Any] = []
    threads: set[str | None] = set()
    condition: Any = tirx.const(True, "bool")
    values: dict[Any, Any] = {}
    before: list[Any] = []
    scope: list[Any] = []
    outermost = node = body
    while not isinstance(node, tirx.BufferStore):
        if isinstance(node, tirx.SeqStmt):
            storing = [
                number for number, statement in enumerate(node.seq) if _stores(statement, output)
            ]
            if len(storing) > 1 and loops:
                return None  # the others store while this one has elements left
            scope = list(node.seq[: storing[0]])
            node = node.seq[storing[0]]
            if not loops:
                # In no loop yet: these statements end before the store begins.
                before, scope = [*before, *scope], []
                outermost = node
        elif isinstance(node, tirx.For):
            threads.add(_thread(node))
            if static(node.extent) == 1:
                values[node.loop_var] = substitute_values(node.min, values)
            else:
                loops.append(node)
                scope = []  # what precedes the loop is not run again in each of its iterations
            node = node.body
        elif isinstance(node, tirx.IfThenElse) and node.else_case is None:
            condition = tirx.And(condition, substitute_values(node.condition, values))
            node = node.then_case
        # The initial value of a reduction would be a store before this one.
        elif isinstance(node, SBlockRealize) and node.block.init is None:
            block = node.block
            condition = tirx.And(condition, substitute_values(node.predicate, values))
            bound = zip(block.iter_vars, node.iter_values, strict=True)
            values.update({axis.var: substitute_values(value, values) for axis, value in bound})
            node = block.body
        else:
            return None
    until = [*before, outermost]
    return _Site(loops, threads, condition, values, before, until, [*scope, node], node)


def _thread(loop: Any) -> str | None:
    """The tag of the threads that a loop is bound to; None of an ordinary loop."""
    return None if loop.thread_binding is None else str(loop.thread_binding.thread_tag)


def _drop_identity_stores(body: Any) -> Any:
    """A kernel's body without stores of elements to where they are loaded from.

    It is returned as it is if nothing else would be left.
    """

    def copies(store: Any) -> bool:
        is_load = isinstance(store.value, Load) and store.value.source.same_as(store.buffer)
        return is_load and same_indices(store.value, store)

    return _dropped(body, tirx.BufferStore, copies)


def _without_prefetches(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel without prefetches, which take addresses, but read nothing."""
    if not any(map(_is_prefetch, nodes_in(kernel.body, tirx.Evaluate))):
        return kernel
    return kernel.with_body(_dropped(kernel.body, tirx.Evaluate, _is_prefetch))


def _is_prefetch(statement: Any) -> bool:
    op = getattr(statement.value, "op", None)
    return str(getattr(op, "name", "")) == "tirx.prefetch"


def _dropped(body: Any, kind: type, is_dropped: Callable[[Any], bool]) -> Any:
    """A kernel's body without some statements of a kind, and without loops and blocks around them.

    It is returned as it is if nothing else would be left.
    """
    nothing = tirx.Evaluate(0)

    def is_nothing(statement: Any) -> bool:
        return isinstance(statement, tirx.Evaluate) and static(statement.value) is not None

    def visit(node: Any) -> Any:
        if isinstance(node, tirx.SeqStmt):
            remaining = [statement for statement in node.seq if not is_nothing(statement)]
            return sequence(*remaining)
        if isinstance(node, kind):
            return nothing if is_dropped(node) else node
        inner = node.body if isinstance(node, tirx.For) else node.block.body
        return nothing if is_nothing(inner) else node

    remaining = replace_nodes(body.block.body, (tirx.SeqStmt, kind, tirx.For, SBlockRealize), visit)
    if is_nothing(remaining):
        return body
    return replace_realized(body, body=remaining)


def _is_only_loaded(kernel: tirx.PrimFunc, buffer: Any) -> bool:
    """Whether a buffer is only loaded from: not stored to, its address not taken."""
    return _is_plain(kernel, buffer) and not _stores(kernel.body, buffer)


def _is_plain(kernel: tirx.PrimFunc, buffer: Any) -> bool:
    """Whether a buffer is used in nothing but loads and stores, and declared regions of blocks.

    Otherwise its address may be taken, or another buffer may be matched to a part of it.
    """
    body = kernel.body
    regions = [r for r in nodes_in(body, tvm.ir.TensorRegion) if r.source.same_as(buffer)]
    accesses = [*regions, *_loads(body, buffer), *_stores(body, buffer)]
    matched = any(block.match_buffers for block in nodes_in(body, SBlock))
    return not matched and uses(body, buffer) == len(accesses)


def _loads(node: Any, buffer: Any) -> list[Any]:
    """The loads of a buffer in a statement."""
    return [load for load in nodes_in(node, Load) if load.source.same_as(buffer)]


def _stores(node: Any, buffer: Any) -> list[Any]:
    """The stores to a buffer in a statement."""
    return [store for store in nodes_in(node, tirx.BufferStore) if store.buffer.same_as(buffer)]


def _simplified(expression: Any) -> Any:
    return tvm.sym.Analyzer().simplify(expression)
