"""Functions of TIR as tensor expressions, where their loops say no more than those can.

Statements are gone through in order, each for all iterations of the loops around it: it becomes a
stage (see `update`) that is made of those before. That is right where iterations do not affect one
another. Where they use a buffer again, or hand it on, it gets a dimension for them (see
`expansion`); what of that is needed is found by trying.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx

from ...errors import MissingGradientError
from ...ir.kernel_rewrite import write_out_unrolled
from ..graph import operations, rewritten
from ..guarded import Guard
from ..indices.linear_system import Axis, analyzer_of
from ..walk import Expr, identity, tensor_key
from .disjoint import known_ranges
from .expansion import Expansion, expanded, scanned
from .order import conflicting, race, rows_of, shares_elements
from .own_reads import OrderError, Update
from .reading import statements_of
from .statements import (
    Access,
    Branch,
    Loop,
    RefusedError,
    Statement,
    Write,
    accesses,
    expressions,
    loads,
    written,
)
from .update import updated

_PRIVATE, _STATE = 1, 2
"""What a buffer is to a loop: each iteration has its own; each goes on from the one before.

Threads do not go on from one another: for them the second says that they share it, and wait for one
another before they read what others wrote.
"""

Use = tuple[int, int]
"""A loop and a buffer, by the identities of their variables in the function."""


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


def lifted(
    func: tirx.PrimFunc, outputs: Sequence[int], inplace: Sequence[int] = ()
) -> TensorProgram:
    """The tensor expressions that a function in destination-passing style computes.

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
    func = func.with_body(write_out_unrolled(func.body))
    unwritten = set(outputs) - set(inplace)
    placeholders = [
        te.placeholder(param.shape, str(param.dtype), name=param.name)
        if not tvm.ir.is_prim_var(param) and number not in unwritten
        else None
        for number, param in enumerate(func.params)
    ]
    try:
        results = _results(func, placeholders, outputs)
    except RefusedError as refused:
        raise MissingGradientError(_message(func, refused)) from None
    read = {identity(op) for op in operations(*results)}
    parameters: list[Any] = []
    for param, placeholder in zip(func.params, placeholders, strict=True):
        if tvm.ir.is_prim_var(param):
            parameters.append(param)
        else:
            used = placeholder is not None and identity(placeholder.op) in read
            parameters.append(placeholder if used else None)
    return TensorProgram(parameters, results)


def _results(func: tirx.PrimFunc, placeholders: Sequence[Any], outputs: Sequence[int]) -> Any:
    """The tensors that the results of a function hold after it."""
    statements = statements_of(func)
    uses: dict[Use, int] = {}
    while True:
        lifter = _Lifter(uses)
        for param, placeholder in zip(func.params, placeholders, strict=True):
            if placeholder is not None:
                lifter.tensors[identity(param)] = placeholder
        try:
            lifter.visit(statements, _Context())
            return [lifter.held(func.params[number]) for number in outputs]
        except _StateError as error:
            # Nothing was learned, so that another try would end the same way.
            if all(uses.get(use) == _STATE for use in error.uses):
                raise error.refused from None
            uses |= dict.fromkeys(error.uses, _STATE)


def _message(func: tirx.PrimFunc, refused: RefusedError) -> str:
    name = str(func.attrs["global_symbol"]) if func.attrs and "global_symbol" in func.attrs else ""
    function = f" of {name}" if name else ""
    statement = f", by the statement {refused.statement}" if refused.statement else ""
    return (
        f"the block {refused.block or 'main'}{function} cannot be written as tensor expressions: "
        f"{refused}{statement}; register a gradient for the function by gg.register_gradient"
    )


class _StateError(Exception):
    """Iterations of a loop turn out to go on from what those before left in some buffers."""

    def __init__(self, uses: Sequence[Use], refused: RefusedError):
        super().__init__(str(refused))
        self.uses = uses
        self.refused = refused


@dataclass(frozen=True)
class _Context:
    """Where a statement stands: the loops around it, outermost first, and the conditions."""

    loops: tuple[Loop, ...] = ()
    guards: tuple[Guard, ...] = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(loop.axis for loop in self.loops)


@dataclass
class _Private:
    """A buffer inside a loop each of whose iterations has its own, and what was written of it."""

    use: Use
    regions: list[tuple[list[Axis], list[Expr]]] = field(default_factory=list)


class _Lifter:
    """The tensor that each buffer holds, as statements are gone through in order."""

    def __init__(self, uses: dict[Use, int]):
        self.uses = uses
        self.tensors: dict[int, te.Tensor] = {}
        self.private: dict[int, _Private] = {}
        self.lost: dict[int, Use] = {}
        self.origins: dict[int, int] = {}
        self.names: dict[int, str] = {}
        # Identities are keys: a buffer that is gone would leave its own to another one.
        self.alive: list[Any] = []

    def visit(self, statements: Sequence[Statement], context: _Context) -> None:
        """Take in statements."""
        for statement in statements:
            if isinstance(statement, Loop):
                self._loop(statement, context)
            elif isinstance(statement, Branch):
                inside = replace(context, guards=(*context.guards, statement.guard))
                self.visit(statement.body, inside)
            else:
                self._write(statement, context)

    def held(self, buffer: Any) -> te.Tensor:
        """The tensor that a buffer holds; zeros where nothing was written yet."""
        key = identity(buffer)
        if key in self.lost:
            reason = f"what an iteration leaves in {buffer.name} is read behind the loop"
            raise _StateError([self.lost[key]], RefusedError(reason))
        if key not in self.tensors:
            zero = tirx.const(0, str(buffer.dtype))
            self.tensors[key] = te.compute(buffer.shape, lambda *_: zero, name=buffer.name)
            self.alive.append(buffer)
        return self.tensors[key]

    # Loops

    def _loop(self, loop: Loop, context: _Context) -> None:
        inside = replace(context, loops=(*context.loops, loop))
        expansions = self._expansions(loop, inside)
        if not expansions:
            self.visit(loop.body, inside)
            return
        before = {identity(e.buffer): self._before(e) for e in expansions}
        placeholders = {identity(e.buffer): e.placeholder() for e in expansions if e.is_state}
        for expansion in expansions:
            self._begin(expansion, before, placeholders)
        self.visit(expanded(loop, expansions), inside)
        states = self._scan([e for e in expansions if e.is_state], before, placeholders)
        for expansion in expansions:
            self._end(expansion, before, states)

    def _expansions(self, loop: Loop, inner: _Context) -> list[Expansion]:
        """The buffers that a loop uses again or hands on."""
        touched: dict[int, list[Access]] = {}
        for access in accesses(loop.body, inner.axes):
            touched.setdefault(identity(access.buffer), []).append(access)
        buffers = written(loop.body)
        uses = {key: self._use(loop, touched[key], buffers[key]) for key in buffers}
        around = inner.axes[:-1]
        hands_on = _STATE in uses.values() and not loop.threads
        expansions = []
        for key, use in uses.items():
            if use == _STATE and loop.threads and not race(touched[key], loop):
                continue
            rows = rows_of(touched[key], loop.axis) if use != _PRIVATE else None
            # What is handed on is made of what has the iteration as a dimension.
            is_row = hands_on and rows is not None and rows.lag == 0
            if not use and not (is_row and _is_read(touched[key])):
                continue
            is_state = use == _STATE and (rows is None or rows.lag > 0)
            try:
                _refuse_simultaneous(loop, buffers[key], use)
                expansions.append(Expansion.of(buffers[key], loop.axis, around, is_state, rows))
            except RefusedError as error:
                store = next(access for access in touched[key] if access.stores)
                error.block = store.write.block
                error.statement = store.write.text([axis.var for axis in store.axes])
                raise
        return expansions

    def _use(self, loop: Loop, touched: Sequence[Access], buffer: Any) -> int:
        use = self.uses.get((identity(loop.axis.var), self._origin(buffer)), 0)
        return use or (_PRIVATE if conflicting(touched, loop) else 0)

    def _origin(self, buffer: Any) -> int:
        return self.origins.get(identity(buffer), identity(buffer))

    def _before(self, expansion: Expansion) -> te.Tensor | None:
        """The contents of a buffer before a loop, if they matter."""
        if not expansion.is_state and expansion.rows is None:
            return None
        private = self.private.get(identity(expansion.buffer))
        # A region without conditions is the whole buffer.
        if private is not None and not any(not conditions for _, conditions in private.regions):
            raise _unwritten(private, expansion.buffer)
        return self.held(expansion.buffer)

    def _begin(self, expansion: Expansion, before: Any, placeholders: Any) -> None:
        """Give the buffers inside a loop what they hold when the iterations begin."""
        key, inside = identity(expansion.buffer), identity(expansion.inside)
        self.alive += [expansion.inside, expansion.past]
        self.origins[inside] = self._origin(expansion.buffer)
        self.names[inside] = self.names.get(key, str(expansion.buffer.name))
        if before[key] is None:
            use = (identity(expansion.axis.var), self._origin(expansion.buffer))
            self.private[inside] = _Private(use)
            return
        if expansion.is_state:
            self.tensors[identity(expansion.past)] = placeholders[key]
        self.tensors[inside] = expansion.beginning(placeholders.get(key), before[key])

    def _scan(
        self, states: Sequence[Expansion], before: Any, placeholders: Any
    ) -> dict[int, te.Tensor]:
        """The values that all iterations have left, of which all else is then made."""
        if not states:
            return {}
        keys = [identity(state.buffer) for state in states]
        results = scanned(
            states,
            [placeholders[key] for key in keys],
            [state.first(before[key]) for state, key in zip(states, keys, strict=True)],
            [self.held(state.inside) for state in states],
        )
        replacements = {
            tensor_key(placeholders[key]): result for key, result in zip(keys, results, strict=True)
        }
        # The stages made so far read placeholders of the past: from here on they read the scan.
        names, tensors = list(self.tensors), list(self.tensors.values())
        self.tensors = dict(
            zip(names, rewritten(tensors, lambda op: None, replacements), strict=True)
        )
        return dict(zip(keys, results, strict=True))

    def _end(self, expansion: Expansion, before: Any, states: dict[int, te.Tensor]) -> None:
        """Give a buffer what a loop leaves in it."""
        key = identity(expansion.buffer)
        self.lost.pop(key, None)
        if before[key] is None:
            # Each iteration had its own: behind the loop there is no one value until it is written.
            self.lost[key] = self.private[identity(expansion.inside)].use
        else:
            inside = self.held(expansion.inside)
            self.tensors[key] = expansion.after(inside, states.get(key), before[key])
            self.alive.append(expansion.buffer)

    # Writes

    def _write(self, write: Write, context: _Context) -> None:
        """Give the buffers of stores that happen at once their new tensors."""
        update = Update(write.stores, list(context.axes), list(context.guards), write.in_any_order)
        try:
            for load in loads([*expressions(write), *(guard for guard, _ in context.guards)]):
                self._check_written(load, context)
            results = updated(update, self.held)
        except RefusedError as error:
            error.block = error.block or write.block
            error.statement = write.text([axis.var for axis in context.axes])
            if not isinstance(error, OrderError):
                raise
            error.name = self.names.get(identity(error.buffer), error.name)
            raise self._state(error, write, context) from None
        for store, result in zip(write.stores, results, strict=True):
            key = identity(store.buffer)
            self.lost.pop(key, None)
            self.tensors[key] = result.tensor
            self.alive.append(store.buffer)
            if key in self.private:
                self.private[key].regions.append((result.element, result.conditions))

    def _state(self, error: OrderError, write: Write, context: _Context) -> Exception:
        """How to go on where the order counts: the outermost such loop is a scan."""
        touched = [
            access
            for access in accesses(self._alone(write, context), context.axes)
            if access.buffer.same_as(error.buffer)
        ]
        for loop in context.loops:
            if shares_elements(touched, loop.axis):
                buffers = [store.buffer for store in write.stores]
                var = identity(loop.axis.var)
                return _StateError([(var, self._origin(buffer)) for buffer in buffers], error)
        return error

    def _alone(self, write: Write, context: _Context) -> list[Statement]:
        statements: list[Statement] = [write]
        for guard in reversed(context.guards):
            statements = [Branch(guard, statements)]
        return statements

    def _check_written(self, load: Any, context: _Context) -> None:
        """Raise if an iteration may read, from its own buffer, what it has not written."""
        private = self.private.get(identity(load.source))
        if private is None:
            return
        axes = known_ranges(context.axes)
        analyzer = analyzer_of(axes)
        assumptions = [c if way else tirx.Not(c) for c, way in context.guards if not loads([c])]
        # TVM's analysis does not cancel what the low end and the extent of a loop have in common.
        assumptions += [axis.var < analyzer.simplify(axis.low + axis.extent) for axis in axes]
        cases = []
        for element, conditions in private.regions:
            # A scatter names no elements; its condition is False.
            at = list(zip([axis.var for axis in element], load.indices, strict=bool(element)))
            cases.append([_at(condition, at) for condition in conditions])
        if any(_follows(analyzer, assumptions, case) for case in cases):
            return
        # Several regions may cover together what none of them does alone.
        alternatives = [tirx.all(*case) for case in cases if case and not loads(case)]
        if alternatives and _follows(analyzer, assumptions, [tirx.any(*alternatives)]):
            return
        raise _unwritten(private, load.source)


def _unwritten(private: _Private, buffer: Any) -> _StateError:
    reason = f"an iteration reads what another one wrote to {buffer.name}"
    return _StateError([private.use], RefusedError(reason))


def _at(condition: Expr, at: Sequence[tuple[Any, Expr]]) -> Expr:
    table = {identity(var): index for var, index in at}

    def value(var: Any) -> Any:
        replacement = table.get(identity(var))
        return var if replacement is None else replacement.astype(str(var.ty))

    return tvm_ffi.structural_map(condition, (tvm.ir.Var, value))


def _follows(analyzer: Any, assumptions: Sequence[Expr], conditions: Sequence[Expr]) -> bool:
    """Whether conditions hold wherever others do, provably."""
    if loads(conditions):
        return False
    with ExitStack() as scopes:
        for condition in assumptions:
            scopes.enter_context(analyzer.constraint_scope(condition))
        return all(analyzer.can_prove(condition) for condition in conditions)


def _refuse_simultaneous(loop: Loop, buffer: Any, use: int) -> None:
    """Raise if iterations go on from one another, and happen at once."""
    if use == _STATE and (loop.threads or loop.lanes):
        kind = "threads" if loop.threads else "lanes of a vector"
        raise RefusedError(f"{kind} go on from what others leave in {buffer.name}")


def _is_read(touched: Sequence[Access]) -> bool:
    return not all(access.stores for access in touched)
