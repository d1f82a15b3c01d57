"""Walks: each update of a position finds what the one before it has left there, see `ops.index`.

Sorted by their positions, in their order, the updates of one follow each other: what an update
finds is what its neighbor leaves, and a recurrence is a loop over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import te

from ...fallback.walk import identity, tensor_key
from ...ir.tensor import accumulator_dtype, type_shape
from ...ir.visits import nodes_in
from ...ops.index_restated import targets_of
from ...ops.indexing import Indexing
from .graph import GraphWriter, Site, elem_type, writes
from .loop_node import loop_node
from .loops import Environment
from .scan import map_stage

_FAR = 2**63 - 1
"""The end of a slice that goes to the last element."""


@writes("graphgrad.scatter_swap")
def _swap(site: Site) -> Any:
    graph, (initial, values, index) = site.graph, site.names
    if 0 in [*site.shape_of(0), *site.shape_of(1)]:
        return [values, initial]
    updates = _Updates(site, index)
    (values,) = updates.in_order(values)

    def found(at_first: str) -> tuple[str, str]:
        parts = updates.part(values, 0, 1), updates.part(values, 0, -1)
        before = graph.node("Concat", *parts, axis=0)
        return graph.node("Where", updates.is_first(), at_first, before), values

    return updates.walked(initial, found)


@writes("graphgrad.scatter_recurrence")
def _recurrence(site: Site) -> Any:
    """In float32 at least; what it returns is of the dtype of the states."""
    graph, (initial, factors, terms, *index) = site.graph, site.names
    if 0 in [*site.shape_of(0), *site.shape_of(1)]:
        return [factors, initial]
    if not index:
        return _along_line(site)
    updates = _Updates(site, index[0])
    factors, terms = updates.in_order(factors, terms)
    first = updates.is_first()

    def found(at_first: str) -> tuple[str, str]:
        def held(step: str, state: str) -> str:
            parts = (graph.node("Gather", name, step, axis=0) for name in (first, at_first))
            return str(graph.node("Where", *parts, state))

        zero = graph.constant(0.0, updates.dtype)
        settings = factors, terms, updates.dtype, held
        _, old, new = _recurred(graph, updates.count, zero, *settings)
        return old, new

    return updates.walked(initial, found)


def _along_line(site: Site) -> Any:
    """A recurrence of all lines at once: a step is of one place of each."""
    graph, attributes = site.graph, site.call.attrs
    shape, axis, dtype = site.shape_of(1), int(attributes["axis"]), accumulator_dtype(_dtype(site))
    front = [axis, *(a for a in range(len(shape)) if a != axis)]

    def turned(x: str) -> str:
        return _flipped(graph, x) if attributes["reverse"] else x

    initial, factors, terms = (graph.node("Cast", x, to=elem_type(dtype)) for x in site.names)
    first = graph.node("Squeeze", initial, graph.ints([axis]))
    factors, terms = (turned(graph.permute(x, front)) for x in (factors, terms))
    last, old, _ = _recurred(graph, graph.scalar(shape[axis]), first, factors, terms, dtype)
    old = graph.permute(turned(old), _inverse(front))
    left = graph.node("Unsqueeze", last, graph.ints([axis]))
    return [graph.node("Cast", x, to=elem_type(_dtype(site))) for x in (old, left)]


def running_product(site: Site, x: str, axis: int, exclusive: bool) -> str:
    """The products of the elements along an axis up to each one, or before it."""
    graph, shape = site.graph, site.shape
    front = [axis, *(a for a in range(len(shape)) if a != axis)]
    if 0 in shape:
        return x
    # As the kernel, see `ops.cumulative`.
    dtype = "float64" if accumulator_dtype(site.dtype) == "float32" else site.dtype
    factors = graph.permute(graph.node("Cast", x, to=elem_type(dtype)), front)
    one = graph.constant(1, dtype)
    first = graph.node("Expand", one, graph.shape([shape[a] for a in front[1:]]))
    count = graph.scalar(shape[axis])
    _, before, after = _recurred(graph, count, first, factors, None, dtype)
    product = graph.permute(before if exclusive else after, _inverse(front))
    return str(graph.node("Cast", product, to=elem_type(site.dtype)))


def _recurred(
    graph: GraphWriter,
    count: str,
    first: str,
    factors: str,
    terms: str | None,
    dtype: str,
    held: Callable[[str, str], str] = lambda step, state: state,
) -> list[str]:
    """The last state of h ← a·h + b, and the states before and after each step.

    Parameters
    ----------
    graph : GraphWriter
    count : str
        How many steps there are, an int64 scalar.
    first : str
    factors, terms : str
        a and b, along a first axis. Without terms, they are none.
    dtype : str
    held : callable, optional
        Given the number of a step and the state that the one before has left, the state it finds.
    """

    def step(number: str, states: list[str]) -> tuple[list[str], list[str]]:
        old = held(number, states[0])
        new = graph.node("Mul", graph.node("Gather", factors, number, axis=0), old)
        if terms is not None:
            new = graph.node("Add", new, graph.node("Gather", terms, number, axis=0))
        return [new], [old, new]

    return loop_node(graph, "recurrence", count, [first], [dtype] * 3, step)


def _inverse(order: list[int]) -> list[int]:
    """The order that undoes another."""
    return [order.index(axis) for axis in range(len(order))]


def _flipped(graph: GraphWriter, x: str) -> str:
    """A tensor whose first axis runs backwards."""
    bounds = (graph.ints([value]) for value in (-1, -_FAR, 0, -1))
    return str(graph.node("Slice", x, *bounds))


def _dtype(site: Site) -> str:
    return str(site.ty.fields[0].dtype)


class _Updates:
    """The updates of a walk, sorted by their positions, those of one in the order of the walk.

    Parameters
    ----------
    site : Site
        Of the walk.
    index : str

    Attributes
    ----------
    count : str
        How many there are, an int64 scalar.
    dtype : str
        In which values are computed.
    """

    def __init__(self, site: Site, index: str):
        self._site, self._graph = site, site.graph
        self._shape, self._updates = site.shape_of(0), site.shape_of(1)
        self.dtype = accumulator_dtype(_dtype(site))
        graph = self._graph
        self.count = graph.scalar(math.prod(self._updates))
        targets = self._targets(index)
        numbers = graph.node("Range", graph.constant(0), self.count, graph.constant(1))
        last = graph.node("Sub", self.count, graph.constant(1))
        turn = graph.node("Sub", last, numbers) if site.call.attrs["reverse"] else numbers
        # No two are the same, so there is one order.
        key = graph.node("Add", graph.node("Mul", targets, self.count), turn)
        length = graph.node("Reshape", self.count, graph.ints([1]))
        _, self._order = graph.node("TopK", key, length, outputs=2, axis=0, largest=0)
        self._numbers = numbers
        self._targets_in_order = graph.node("Gather", targets, self._order, axis=0)

    def _targets(self, index: str) -> str:
        """The position of each update in the flat data; behind it, of those that point outside."""
        site, graph = self._site, self._graph
        ty = site.call.args[-1].ty
        placeholder = te.placeholder(type_shape(ty), str(ty.dtype), "index")
        shape, updates = (list(argument.ty.shape) for argument in site.call.args[:2])
        indexing = Indexing.of(site.call.attrs)
        targets = targets_of(indexing, shape, placeholder, updates, updates)
        environment = Environment(graph, {tensor_key(placeholder): index}, {})
        for extent in nodes_in([targets.op.body, *(a.dom for a in targets.op.axis)], tvm.ir.Var):
            if extent.name in graph.extents:
                environment.scalars[identity(extent)] = graph.scalar(extent)
        return map_stage(environment, targets.op.axis, targets.op.body)[0]

    def in_order(self, *values: str) -> list[str]:
        """Tensors in the shape of the updates, flat."""
        graph = self._graph
        flat = (graph.node("Reshape", name, graph.ints([-1])) for name in values)
        wide = (graph.node("Cast", name, to=elem_type(self.dtype)) for name in flat)
        return [graph.node("Gather", name, self._order, axis=0) for name in wide]

    def part(self, flat: str, begin: int, end: int) -> str:
        """A slice of a vector."""
        bounds = (self._graph.ints([value]) for value in (begin, end, 0))
        return str(self._graph.node("Slice", flat, *bounds))

    def _moves_on(self) -> str:
        """For each two neighbors whether they have different positions."""
        graph, targets = self._graph, self._targets_in_order
        pair = self.part(targets, 1, _FAR), self.part(targets, 0, -1)
        return str(graph.node("Not", graph.node("Equal", *pair)))

    def is_first(self) -> str:
        """Whether an update is the first one of its position."""
        true = self._graph.constant([True])
        return str(self._graph.node("Concat", true, self._moves_on(), axis=0))

    def walked(self, initial: str, found: Callable[[str], tuple[str, str]]) -> list[str]:
        """What each update found, and what is left in the end.

        Parameters
        ----------
        initial : str
        found : callable
            Given what there is at first at the position of each, what each finds and leaves.
        """
        graph, targets, dtype = self._graph, self._targets_in_order, self.dtype
        flat = graph.node("Reshape", initial, graph.ints([-1]))
        flat = graph.node("Cast", flat, to=elem_type(dtype))
        length = graph.node("Reshape", self.count, graph.ints([1]))
        nothing = graph.node("Expand", graph.constant(0, dtype), length)
        behind = graph.scalar(math.prod(self._shape))
        data = graph.node("Concat", flat, nothing, axis=0)  # a place behind for each update
        old, new = found(graph.node("Gather", data, targets, axis=0))
        inside = graph.node("Less", targets, behind)
        old = graph.node("Where", inside, old, graph.constant(0, dtype))
        old = graph.node("ScatterElements", nothing, self._order, old, axis=0)
        last = graph.node("Concat", self._moves_on(), graph.constant([True]), axis=0)
        stays = graph.node("And", last, inside)
        spare = graph.node("Add", behind, self._numbers)
        left = graph.node(
            "ScatterElements", data, graph.node("Where", stays, targets, spare), new, axis=0
        )
        end = graph.node("Reshape", behind, graph.ints([1]))
        left = graph.node("Slice", left, graph.ints([0]), end, graph.ints([0]))
        results = graph.reshape(old, self._updates), graph.reshape(left, self._shape)
        return [graph.node("Cast", name, to=elem_type(_dtype(self._site))) for name in results]
