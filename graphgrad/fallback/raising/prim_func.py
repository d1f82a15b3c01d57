"""Functions of TIR as tensor expressions, where their loops say no more than those can.

A store in a loop nest gives each element that it reaches a new value. Inverting its index map tells
in which iteration that was: what is stored there is the body of a stage, and loops that the element
does not determine are a reduction (`raise_update`). A buffer that is written several times is
several stages, each made of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import SBlockRealize

from ...errors import MissingGradientError
from ..graph import operations
from ..guarded import Guard
from ..indices.index_system import invert
from ..indices.linear_system import Axis, NotAffineError, element_axes
from ..walk import Expr, identity
from .update import Store, Update, depends, updated

Load = tvm.ir.TensorLoad

_REDUCE = 2
"""The kind of a block's axis that is reduced over, as TVM numbers them."""


@dataclass(frozen=True)
class TensorProgram:
    """What a function computes, as tensor expressions.

    Attributes
    ----------
    parameters : list of Tensor, Var or None
        One per parameter of the function: a placeholder for a buffer that is read, the variable for
        a scalar, None for a buffer whose contents are not read.
    outputs : list of Tensor
    """

    parameters: list[Any]
    outputs: list[te.Tensor]


def raised(
    func: tirx.PrimFunc, outputs: Sequence[int], inplace: Sequence[int] = ()
) -> TensorProgram:
    """Return the tensor expressions that a function in destination-passing style computes.

    Parameters
    ----------
    func : PrimFunc
    outputs : sequence of int
        Which parameters are results.
    inplace : sequence of int
        Which of them hold a value before: those have a placeholder too, if it is read. The others
        hold nothing before, which reads as zeros.

    Raises
    ------
    MissingGradientError
        A block does what tensor expressions cannot say: the error names it and the reason.
    """
    unwritten = set(outputs) - set(inplace)
    placeholders = [
        te.placeholder(param.shape, str(param.dtype), name=param.name)
        if not tvm.ir.is_prim_var(param) and number not in unwritten
        else None
        for number, param in enumerate(func.params)
    ]
    raising = _Raising(
        {
            identity(param): placeholder
            for param, placeholder in zip(func.params, placeholders, strict=True)
            if placeholder is not None
        }
    )
    raising.visit(func.body, _Place())
    results = [raising.held(func.params[number]) for number in outputs]
    read = {identity(op) for op in operations(*results)}
    parameters: list[Any] = []
    for param, placeholder in zip(func.params, placeholders, strict=True):
        if tvm.ir.is_prim_var(param):
            parameters.append(param)
        else:
            used = placeholder is not None and identity(placeholder.op) in read
            parameters.append(placeholder if used else None)
    return TensorProgram(parameters, results)


@dataclass(frozen=True)
class _Place:
    """Where a statement stands.

    Attributes
    ----------
    axes : tuple of Axis
        The loops around it, outermost first.
    guards : tuple of Guard
        The conditions around it.
    bound : tuple of (Var, Expr)
        What variables stand for, in terms of the loops.
    block : str
        The name of the innermost block.
    reduces : bool
        That block has a reduce axis: its iterations may happen in any order.
    """

    axes: tuple[Axis, ...] = ()
    guards: tuple[Guard, ...] = ()
    bound: tuple[tuple[Any, Expr], ...] = ()
    block: str = "main"
    reduces: bool = False

    def value(self, expr: Expr) -> Expr:
        """Return an expression in terms of the loops, and of buffers."""
        table = {identity(var): value for var, value in self.bound}
        return tvm_ffi.structural_map(expr, (tvm.ir.Var, lambda v: table.get(identity(v), v)))


class _Raising:
    """The tensor that each buffer holds, as statements are gone through in order."""

    def __init__(self, versions: dict[int, te.Tensor]):
        self.versions = versions

    def visit(self, statement: Any, place: _Place) -> None:
        """Take in a statement."""
        if isinstance(statement, tirx.For):
            axis = Axis(
                statement.loop_var, place.value(statement.min), place.value(statement.extent)
            )
            inner = replace(place, axes=(*place.axes, axis))
            _check_order(statement, inner)
            self.visit(statement.body, inner)
        elif isinstance(statement, SBlockRealize):
            self._visit_block(statement, place)
        elif isinstance(statement, tirx.IfThenElse):
            condition = place.value(statement.condition)
            self.visit(
                statement.then_case, replace(place, guards=(*place.guards, (condition, True)))
            )
            if statement.else_case is not None:
                guards = (*place.guards, (condition, False))
                self.visit(statement.else_case, replace(place, guards=guards))
        elif isinstance(statement, tirx.SeqStmt | tirx.BufferStore | tirx.Bind):
            self._visit_sequence(statement, place)
        elif not _has_no_effect(statement):
            raise _refusal(place, f"a {type(statement).__name__} has no tensor expression")

    def _visit_block(self, realize: Any, place: _Place) -> None:
        block = realize.block
        if block.match_buffers:
            raise _refusal(place, f"the block {block.name_hint} looks at a part of a buffer")
        bound = [
            (axis.var, place.value(value))
            for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)
        ]
        guards = place.guards
        if not _is_true(realize.predicate):
            guards = (*guards, (place.value(realize.predicate), True))
        name = str(block.name_hint) or place.block
        reduces = any(int(axis.iter_type) == _REDUCE for axis in block.iter_vars)
        inner = _Place(place.axes, guards, (*place.bound, *bound), name, reduces)
        if block.init is not None:
            self._visit_init(block, inner)
        self.visit(block.body, inner)

    def _visit_init(self, block: Any, place: _Place) -> None:
        """Take in what a block stores first: in loops that its elements determine, once."""
        for store in _statements(block.init):
            if not isinstance(store, tirx.BufferStore):
                raise _refusal(place, f"its init has a {type(store).__name__}")
            self._update([store], place, initial=True)

    def _visit_sequence(self, statement: Any, place: _Place) -> None:
        """Take in statements in order; stores of bound values happen at once."""
        waiting: list[Any] = []
        bound = False
        for part in _statements(statement):
            if isinstance(part, tirx.Bind):
                self._flush(waiting, place)
                waiting = []
                place = replace(place, bound=(*place.bound, (part.var, place.value(part.value))))
                bound = True
            elif isinstance(part, tirx.BufferStore):
                waiting.append(part)
                if not bound:
                    self._flush(waiting, place)
                    waiting = []
            else:
                self._flush(waiting, place)
                waiting = []
                if bound and _stores(part):
                    raise _refusal(place, "a value is bound before the buffers it reads change")
                self.visit(part, place)
        self._flush(waiting, place)

    def _flush(self, stores: Sequence[Any], place: _Place) -> None:
        if stores:
            self._update(stores, place)

    def _update(self, stores: Sequence[Any], place: _Place, initial: bool = False) -> None:
        """Give the buffers of some stores, which happen at once, their new tensors."""
        update = Update(
            [
                Store(
                    store.buffer, [place.value(i) for i in store.indices], place.value(store.value)
                )
                for store in stores
            ],
            list(place.axes),
            list(place.guards),
            initial,
            place.reduces,
        )
        try:
            results = updated(update, self.held)
        except NotAffineError as error:
            raise _refusal(place, str(error)) from None
        for store, tensor in zip(stores, results, strict=True):
            self.versions[identity(store.buffer)] = tensor

    def held(self, buffer: Any) -> te.Tensor:
        """Return the tensor that a buffer holds; zeros where nothing was written yet."""
        key = identity(buffer)
        if key not in self.versions:
            zero = tirx.const(0, str(buffer.dtype))
            self.versions[key] = te.compute(buffer.shape, lambda *_: zero, name=buffer.name)
        return self.versions[key]


def _check_order(loop: Any, place: _Place) -> None:
    """Raise if the statements of a loop cannot each be done for all its iterations in turn.

    They can if every access to a buffer that is written there tells the iteration by the element:
    then no iteration touches what another one does.
    """
    accesses = list(_accesses(loop.body, place))
    written = {identity(access.buffer) for access in accesses if access.stores}
    if _updates(loop.body) < 2:
        return
    elements: dict[int, list[Axis]] = {}
    owners: dict[int, Expr | None] = {}
    for access in accesses:
        key = identity(access.buffer)
        if key not in written:
            continue
        element = elements.setdefault(key, element_axes(access.buffer.shape))
        owner = _iteration(access, loop, element)
        known = owners.setdefault(key, owner)
        if owner is None or not tvm_ffi.structural_equal(known, owner):
            raise _refusal(
                access.place,
                f"iterations of the loop {loop.loop_var.name} share elements of "
                f"{access.buffer.name}, so their order matters",
            )


@dataclass(frozen=True)
class _Access:
    buffer: Any
    indices: list[Expr]
    place: _Place
    stores: bool


def _iteration(access: _Access, loop: Any, element: list[Axis]) -> Expr | None:
    """Return the loop's variable as the accessed element determines it; None if it does not."""
    axes = list(access.place.axes)
    try:
        inversion = invert(access.indices, axes, element)
    except NotAffineError:
        return None
    number = next(i for i, axis in enumerate(axes) if axis.var.same_as(loop.loop_var))
    value = inversion.values[number]
    return None if depends(value, [axis.var for axis in inversion.loops]) else value


def _accesses(statement: Any, place: _Place) -> Iterator[_Access]:
    """Yield the loads and stores of a statement, inside its own loops too."""
    if isinstance(statement, tirx.For):
        axis = Axis(statement.loop_var, place.value(statement.min), place.value(statement.extent))
        yield from _accesses(statement.body, replace(place, axes=(*place.axes, axis)))
    elif isinstance(statement, SBlockRealize):
        pairs = zip(statement.block.iter_vars, statement.iter_values, strict=True)
        bound = [(axis.var, place.value(value)) for axis, value in pairs]
        name = str(statement.block.name_hint)
        inner = replace(place, bound=(*place.bound, *bound), block=name)
        # The init of a reduction touches what its body touches.
        yield from _accesses(statement.block.body, inner)
    elif isinstance(statement, tirx.IfThenElse):
        yield from _loads(statement.condition, place)
        for part in (statement.then_case, statement.else_case):
            if part is not None:
                yield from _accesses(part, place)
    elif isinstance(statement, tirx.SeqStmt):
        for part in statement.seq:
            yield from _accesses(part, place)
    elif isinstance(statement, tirx.Bind):
        yield from _loads(statement.value, place)
    elif isinstance(statement, tirx.BufferStore):
        yield from _loads(statement.value, place)
        indices = [place.value(index) for index in statement.indices]
        yield _Access(statement.buffer, indices, place, True)


def _loads(expr: Expr, place: _Place) -> list[_Access]:
    found: list[_Access] = []

    def visit(load: Any) -> None:
        indices = [place.value(index) for index in load.indices]
        found.append(_Access(load.source, indices, place, False))

    tvm_ffi.structural_walk(expr, (Load, visit))
    return found


def _statements(statement: Any) -> list[Any]:
    return list(statement.seq) if isinstance(statement, tirx.SeqStmt) else [statement]


def _stores(statement: Any) -> bool:
    """Return whether a statement writes to a buffer."""
    found: list[Any] = []
    tvm_ffi.structural_walk(statement, (tirx.BufferStore, found.append))
    return bool(found)


def _updates(statement: Any) -> int:
    """Return how many of the stores in a statement do not happen at once; 2 stands for more."""
    if isinstance(statement, tirx.SeqStmt) and isinstance(statement.seq[0], tirx.Bind):
        return 1 if all(isinstance(s, tirx.Bind | tirx.BufferStore) for s in statement.seq) else 2
    if isinstance(statement, tirx.SeqStmt):
        return sum(map(_updates, statement.seq))
    if isinstance(statement, tirx.For):
        return _updates(statement.body)
    if isinstance(statement, SBlockRealize):
        return _updates(statement.block.body)
    if isinstance(statement, tirx.IfThenElse):
        arms = [statement.then_case, statement.else_case]
        return sum(_updates(arm) for arm in arms if arm is not None)
    return int(isinstance(statement, tirx.BufferStore))


def _has_no_effect(statement: Any) -> bool:
    return isinstance(statement, tirx.AllocBuffer) or (
        isinstance(statement, tirx.Evaluate) and isinstance(statement.value, tirx.IntImm)
    )


def _is_true(condition: Any) -> bool:
    return isinstance(condition, tirx.IntImm) and bool(condition.value)


def _refusal(place: _Place, reason: str) -> MissingGradientError:
    return MissingGradientError(
        f"the block {place.block} cannot be written as tensor expressions: {reason}; register a "
        "gradient for the function by gg.register_gradient"
    )
