"""Stores in a loop nest as stages: what each element of the buffers holds afterwards.

The index map of a store is inverted: in terms of an element, it says in which iterations that was
written. Where this is one, the stored value is the stage's body. Where it is several, they all
store the same, or combine the element with a value each: a reduction. Places that are read from
data are not inverted: what is added there is a scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim

from ..guarded import Guard, Guarded, within
from ..indices.index_system import Inversion
from ..indices.linear_system import Axis, NotAffineError, analyzer_of, element_axes
from ..scatter import Scatter, scatter_add
from ..walk import Expr, identity, substituted
from .combination import Combination, NoCombinationError
from .disjoint import inverted
from .own_reads import OrderError, Update, all_loads, check_own_reads, is_own
from .statements import Load, Store, depends, equal, integral, is_integral, loads

Held = Callable[[Any], te.Tensor]
"""The tensor that a buffer holds before."""


@dataclass(frozen=True)
class Result:
    """What a buffer holds after an update.

    Attributes
    ----------
    tensor : Tensor
    element : list of Axis
        The loops over its elements in whose variables the conditions are.
    conditions : list of Expr
        The update writes the elements for which all of these hold.
    """

    tensor: te.Tensor
    element: list[Axis]
    conditions: list[Expr]


def updated(update: Update, held: Held) -> list[Result]:
    """The contents of the buffers of an update's stores after it.

    Parameters
    ----------
    update : Update
    held : callable

    Raises
    ------
    OrderError
        It is neither a map, nor a reduction, nor a scatter, because the order counts.
    RefusedError
        It is none of them for another reason.
    """
    first, *others = update.stores
    element = element_axes(first.buffer.shape)
    check_own_reads(update)
    if not all(
        equal(first.indices, other.indices) and equal(first.buffer.shape, other.buffer.shape)
        for other in others
    ):
        return _separately(update, held)
    reach = _invert_indices(first.indices, update, element)
    if reach is None:
        return [_scatter_update(update, held)]
    inversion, equations = reach
    # The inversion has the conditions on integers already.
    data_guards = [guard for guard in update.guards if not is_integral(guard[0])]
    nest = _Nest(replace(update, guards=data_guards), held, element, inversion, equations)
    if not inversion.loops:
        return [nest.stored(store) for store in update.stores]
    if not any(is_own(load, update) for load in all_loads(update)):
        return nest.overwritten()
    return [_scatter_update(update, held)] if equations else nest.reduced()


def _separately(update: Update, held: Held) -> list[Result]:
    """The buffers after stores at different elements, none of which reads what is stored."""
    first = update.stores[0].buffer
    if any(load.source.same_as(s.buffer) for load in all_loads(update) for s in update.stores):
        raise OrderError(first, "it stores to several buffers, and reads them, at other elements")
    singles = [replace(update, stores=[store]) for store in update.stores]
    return [result for single in singles for result in updated(single, held)]


def _invert_indices(
    indices: Sequence[Expr], update: Update, element: Sequence[Axis]
) -> tuple[Inversion, list[Expr]] | None:
    """The iterations that reach an element, by those indices that can be inverted.

    The other indices are conditions for an element. None if no iterations can be told, since it is
    read from data how many there are.
    """
    affine = [n for n, index in enumerate(indices) if _is_affine(index, update.axes, element[n])]
    try:
        inversion = inverted(
            [indices[n] for n in affine],
            update.axes,
            element,
            position=[element[n].var for n in affine] if len(affine) < len(indices) else None,
            equations=integral(update.guards),
        )
    except NotAffineError:
        return None
    equations = [
        element[n].var.equal(index.astype(str(element[n].var.ty)))
        for n, index in enumerate(indices)
        if n not in affine
    ]
    return inversion, equations


def _is_affine(index: Expr, axes: Sequence[Axis], element: Axis) -> bool:
    if loads([index]):
        return False
    try:
        inverted([index], axes, [element])
    except NotAffineError:
        return False
    return True


def _scatter_update(update: Update, held: Held) -> Result:
    """A buffer after values were added to it at places that are read from data.

    Raises
    ------
    OrderError
        It changes otherwise than by a sum.
    """
    first = update.stores[0]
    own_loads = [load for load in all_loads(update) if is_own(load, update)]
    try:
        combination = Combination.of(update.stores, update.in_any_order)
    except NoCombinationError:
        combination = None
    # The one own load is the old value of the sum; another one would see a sum in the making.
    if combination is None or combination.name != "sum" or len(own_loads) != 1:
        raise OrderError(
            first.buffer,
            "{} changes at places that are read from data, and not by a sum",
        )
    axes = _renew_axes(update.axes)
    renamed = [(a.var, b.var) for a, b in zip(update.axes, axes, strict=True)]

    def in_stage(expr: Expr) -> Expr:
        return substituted(_read_tensors(expr, held), renamed)

    before = held(first.buffer)
    guards = tuple((in_stage(condition), way) for condition, way in update.guards)
    scatter = Scatter.of(
        [Axis(axis.var, in_stage(axis.low), in_stage(axis.extent)) for axis in axes],
        [in_stage(index) for index in first.indices],
        Guarded(guards, in_stage(combination.sources[0])),
    )
    name = f"{first.buffer.name}_scat"
    added = scatter_add(before.shape, str(before.dtype), [scatter], name)
    (total,) = _combined(combination, [before], [added])
    # Which elements are reached is read from data: of none is it known that it is written.
    return Result(total, [], [tirx.const(False)])


def _renew_axes(axes: Sequence[Axis]) -> list[Axis]:
    """Loops over new variables: a loop of a stage belongs to that stage alone."""
    return [replace(axis, var=tirx.Var(axis.var.name, str(axis.var.ty))) for axis in axes]


def _read_tensors(expr: Expr, held: Held) -> Expr:
    """An expression that reads from the tensors that buffers hold."""
    for load in loads([expr]):
        held(load.source)  # an error that is raised inside TVM loses its type
    return tvm_ffi.structural_map(expr, (Load, lambda load: held(load.source)(*load.indices)))


@dataclass
class _Nest:
    """An update seen from an element: the iterations that reach it."""

    update: Update
    held: Held
    element: list[Axis]
    inversion: Inversion
    equations: list[Expr]

    def stored(self, store: Store) -> Result:
        """The buffer after a store that reaches each element at most once."""
        return self._result(store, self._seen(store.value), self._guards())

    def overwritten(self) -> list[Result]:
        """The buffers after stores that reach elements repeatedly with the same.

        Raises
        ------
        OrderError
            What they store is not always the same.
        """
        variables = [axis.var for axis in self.inversion.loops]
        values = [self._seen(store.value) for store in self.update.stores]
        if any(depends(value, variables) for value in values):
            store = self.update.stores[0]
            raise OrderError(store.buffer, "{} is overwritten in every iteration")
        guards = self._guards()
        kept = [guard for guard in guards if not depends(guard[0], variables)]
        reached = [self._reached([guard for guard in guards if depends(guard[0], variables)])]
        results = []
        for store, value in zip(self.update.stores, values, strict=True):
            result = self._result(store, value, kept, [r for r in reached if r is not None])
            results.append(result)
        return results

    def _reached(self, guards: Sequence[Guard]) -> te.Tensor | None:
        """1 for each element that is reached in any iteration; None if all are."""
        if not guards:
            return None
        conditions = [(_read_tensors(condition, self.held), way) for condition, way in guards]
        loops, renamed = self._loops()
        one, zero = tirx.const(1, "int32"), tirx.const(0, "int32")

        def body(*position: Any) -> Expr:
            at = [*zip([axis.var for axis in self.element], position, strict=True), *renamed]
            return te.max(substituted(within(conditions, one, zero), at), axis=loops)

        shape = tuple(self.update.stores[0].buffer.shape)
        return te.compute(shape, body, name=f"{self.update.stores[0].buffer.name}_reached")

    def _loops(self) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """The iterations that reach an element as loops of a reduction, and their names."""
        loops = [
            te.reduce_axis((a.low, a.low + a.extent), a.var.name) for a in self.inversion.loops
        ]
        return loops, [(a.var, r.var) for a, r in zip(self.inversion.loops, loops, strict=True)]

    def _result(
        self, store: Store, value: Expr, guards: Sequence[Guard], reached: Sequence[te.Tensor] = ()
    ) -> Result:
        """The buffer with a value, in terms of an element, where some guards hold.

        So must those that are in tensors.
        """
        before = self.held(store.buffer) if guards or reached else None
        loaded = _read_tensors(value, self.held)
        conditions = [(_read_tensors(condition, self.held), way) for condition, way in guards]

        def body(*position: Any) -> Expr:
            at = list(zip([axis.var for axis in self.element], position, strict=True))
            result = substituted(loaded, at)
            tests = [(substituted(condition, at), way) for condition, way in conditions]
            tests += [(tensor(*position) > 0, True) for tensor in reached]
            return result if before is None else within(tests, result, before(*position))

        tensor = te.compute(tuple(store.buffer.shape), body, name=store.buffer.name)
        written_where = [guard if way else tirx.Not(guard) for guard, way in guards]
        # What a tensor says of an element cannot be told beforehand; False stands for it.
        return Result(tensor, self.element, [*written_where, *(tirx.const(False) for _ in reached)])

    def reduced(self) -> list[Result]:
        """The buffers after stores that combine each element with several values.

        Raises
        ------
        OrderError
            They do not combine by what is known to be associative.
        """
        stores = self.update.stores
        if any(is_own(load, self.update) for load in loads([g for g, _ in self.update.guards])):
            raise OrderError(stores[0].buffer, "whether {} changes depends on what it holds")
        before = [self.held(store.buffer) for store in stores]
        starts = _constants(before)
        try:
            combination = Combination.of(stores, self.update.in_any_order)
            identities = combination.identities(starts)
        except NoCombinationError as error:
            raise OrderError(stores[0].buffer, str(error)) from None
        guards = [(_read_tensors(guard, self.held), way) for guard, way in self._guards()]
        sources = [_read_tensors(self._seen(s), self.held) for s in combination.sources]
        first = stores[0].buffer
        loops, renamed = self._loops()

        def body(*position: Any) -> Any:
            at = [*zip([axis.var for axis in self.element], position, strict=True), *renamed]
            values = [
                within(guards, value, start)
                for value, start in zip(sources, identities, strict=True)
            ]
            values = [substituted(value, at) for value in values]
            return combination.reduce(values, identities, loops)

        result = te.compute(tuple(first.shape), body, name=f"{first.name}_{combination.name}")
        tensors = [result] if isinstance(result, te.Tensor) else list(result)
        # Old values that change nothing, such as the zeros of a sum, need not be combined.
        if starts is None or not all(map(tvm_ffi.structural_equal, starts, identities)):
            tensors = _combined(combination, before, tensors)
        return [Result(tensor, self.element, [tirx.const(False)]) for tensor in tensors]

    def _guards(self) -> list[Guard]:
        """The conditions in terms of the element: to be an iteration, then the update's."""
        conditions = [*self.update.guards, *((equation, True) for equation in self.equations)]
        of_update = [(self._seen(condition), way) for condition, way in conditions]
        return [*((guard, True) for guard in self.inversion.guards), *of_update]

    def _seen(self, expr: Expr) -> Expr:
        """An expression at the iteration that reaches an element."""
        values = zip([axis.var for axis in self.update.axes], self.inversion.values, strict=True)
        table = {identity(var): value for var, value in values}
        analyzer = analyzer_of([*self.element, *self.inversion.loops])
        changes = [
            (tvm.ir.Var, lambda var: table.get(identity(var), var)),
            (Load, lambda load: _simplified(load, analyzer)),
        ]
        return tvm_ffi.structural_map(expr, changes)


def _simplified(load: Any, analyzer: tvm.sym.Analyzer) -> Any:
    """A load at the same place, told as simply as can be."""
    return tirx.BufferLoad(load.source, [analyzer.simplify(index) for index in load.indices])


def _constants(tensors: Sequence[te.Tensor]) -> list[Expr] | None:
    """The one value that each tensor is filled with; None unless all are."""
    values = []
    for tensor in tensors:
        body = tensor.op.body[0] if isinstance(tensor.op, te.ComputeOp) else None
        if not isinstance(body, prim.IntImm | prim.FloatImm):
            return None
        values.append(body)
    return values


def _combined(
    combination: Combination, before: Sequence[te.Tensor], tensors: Sequence[te.Tensor]
) -> list[te.Tensor]:
    """The buffers' old values combined with what was reduced."""

    def body(*position: Any) -> Any:
        return combination.apply(
            [tensor(*position) for tensor in before], [tensor(*position) for tensor in tensors]
        )

    name = tensors[0].op.name
    result = te.compute(tuple(tensors[0].shape), body, name=f"{name}_total")
    return [result] if isinstance(result, te.Tensor) else list(result)
