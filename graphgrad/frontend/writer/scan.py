"""Loops that go on from one step to the next, as Loop nodes that carry the last row of each state.

Inside of it a stage is computed where a row of it is read: at the index that the reader names, an
expression of the number of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import te, tirx

from ...fallback.graph import scan_body
from ...fallback.indices.linear_system import Axis
from ...fallback.walk import Expr, identity, substituted, tensor_key
from .graph import UnwritableError
from .loop_node import loop_node
from .loops import Environment, Loops


def map_stage(
    environment: Environment, iterations: Sequence[Any], bodies: Sequence[Expr]
) -> list[str]:
    """The results of a stage that computes each element, perhaps by a reduction.

    Parameters
    ----------
    environment : Environment
    iterations : sequence of IterVar
        Of the elements.
    bodies : sequence of Expr
        Of the results. Those of a reduction of tuples are its components.
    """
    reduced = list(bodies[0].axis) if isinstance(bodies[0], tirx.Reduce) else []
    axes = [Axis(loop.var, loop.dom.min, loop.dom.extent) for loop in [*iterations, *reduced]]
    loops = Loops(environment, axes, len(iterations))
    return loops.folded(bodies[0]) if len(bodies) > 1 and reduced else [*map(loops.mapped, bodies)]


def scan_stage(environment: Environment, op: Any) -> list[str]:
    """The states of a scan, at all steps."""
    graph = environment.graph
    if any(not isinstance(n, tirx.IntImm) or int(n) != 1 for n in (i.shape[0] for i in op.init)):
        raise UnwritableError(f"the states before {op.name}, which are several")
    begun = [environment.tensors[tensor_key(tensor)] for tensor in op.init]
    first = [graph.node("Squeeze", name, graph.ints([0])) for name in begun]
    dtypes = [str(tensor.dtype) for tensor in op.update]

    def step(number: str, carried: list[str]) -> tuple[list[str], list[str]]:
        after = graph.node("Add", number, graph.constant(1))
        rows = _Rows(environment, op, after, carried)
        new = [rows.at(update, op.scan_axis.var) for update in op.update]
        return new, new

    steps = Loops(environment, [], 0).scalar(op.scan_axis.dom.extent)
    results = loop_node(graph, op.name, steps, first, [*dtypes, *dtypes], step)
    rest = results[len(first) :]
    return [graph.node("Concat", *pair, axis=0) for pair in zip(begun, rest, strict=True)]


class _Rows:
    """The rows of what a step computes.

    Parameters
    ----------
    environment : Environment
        Outside of the loop.
    op : ScanOp
    number : str
        The name of the step's number, from that of the first state on.
    carried : sequence of str
        The names of the states before the step.
    """

    def __init__(self, environment: Environment, op: Any, number: str, carried: Sequence[str]):
        self._op = op
        scalars = {**environment.scalars, identity(op.scan_axis.var): number}
        self._environment = replace(environment, scalars=scalars)
        states = (tensor_key(state) for state in op.state_placeholder)
        self._states = dict(zip(states, carried, strict=True))
        self._inside = {identity(stage) for stage in scan_body(op)}
        self._analyzer = tvm.sym.Analyzer()
        self._analyzer.bind(op.scan_axis.var, op.scan_axis.dom)
        self._rows: dict[Any, list[tuple[Expr, str]]] = {}

    def at(self, tensor: Any, index: Expr) -> str:
        """The row of a tensor at an index, which is an expression of the step's number."""
        row = self.of_step(tensor, index)
        if row is not None:
            return row
        whole, at = self._environment.tensors[tensor_key(tensor)], self._number(index)
        return str(self._environment.graph.node("Gather", whole, at, axis=0))

    def of_step(self, tensor: Any, index: Expr) -> str | None:
        """Likewise, of what a step computes; None of other tensors."""
        state = self._states.get(tensor_key(tensor))
        if state is not None:
            before = self._op.scan_axis.var - 1
            if not self._analyzer.can_prove_equal(index, before):
                raise UnwritableError(
                    f"the state of {self._op.name} at {self._analyzer.simplify(index)}"
                )
            return state
        if identity(tensor.op) not in self._inside:
            return None
        rows = self._rows.setdefault(tensor_key(tensor), [])
        for known, name in rows:
            if self._analyzer.can_prove_equal(index, known):
                return name
        rows.append((index, self._computed(tensor, index)))
        return rows[-1][1]

    def _computed(self, tensor: Any, index: Expr) -> str:
        op = tensor.op
        if not isinstance(op, te.ComputeOp):
            raise UnwritableError(f"the {type(op).__name__} {op.name} in {self._op.name}")
        first, *others = op.axis
        scalars = {**self._environment.scalars, identity(first.var): self._number(index)}
        environment = replace(
            self._environment,
            scalars=scalars,
            row=lambda read, at: self.of_step(read, substituted(at, {first.var: index})),
        )
        return map_stage(environment, others, op.body)[tensor.value_index]

    def _number(self, index: Expr) -> str:
        return Loops(self._environment, [], 0).scalar(index)
