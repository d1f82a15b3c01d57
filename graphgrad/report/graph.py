"""The graph of a model as a report shows it: nodes, who wrote their gradients, what trains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import onnx
from tvm import relax

from ..autodiff.activity import location, op_name, variables_in
from ..frontend.mode import specialize
from ..frontend.model import Model
from ..frontend.onnx_graph import subgraphs
from ..ir.inline import inline_calls
from ..ir.program import Program
from ..ir.tensor import dimension_text, has_shape
from .coverage import Coverage, Row, coverage

FOLDED = "folded"
"""The origin of a node of which nothing is left to differentiate."""

_ORDER = ("missing", "user", "derived", "hand", "nondifferentiable", "not needed")
"""The origin of a node that became several calls is the first of theirs."""


@dataclass(frozen=True)
class Subject:
    """What is reported on: a model, and how it is differentiated.

    Attributes
    ----------
    model : Model
    wrt : tuple of str
        The parameters that train.
    rules : "auto" or "derived"
    """

    model: Model
    wrt: tuple[str, ...]
    rules: str = "auto"

    def coverage(self) -> Coverage:
        """Which op has which gradient; of a model in which nothing trains, that of its inputs."""
        return coverage(self.model, wrt=self.wrt or None, rules=self.rules)


@dataclass(frozen=True)
class Node:
    """A node of the graph.

    Attributes
    ----------
    name : str
        Of the ONNX node, or of a value where there is no file; of an input or output.
    op : str
        Operator of the file, else the Relax op.
    kind : "node", "input" or "output"
    origin : str
        Of its gradient, as in `Row.provenance`; ``"folded"`` if it is in no program; empty for
        inputs and outputs.
    calls : tuple of Row
        What it became, see `Coverage`.
    params : tuple of str
        The parameters and statistics that it reads.
    types : tuple of str
        Its results, with dtype and shape.
    """

    name: str
    op: str
    kind: Literal["node", "input", "output"]
    origin: str
    calls: tuple[Row, ...]
    params: tuple[str, ...]
    types: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """Nodes in an order of execution, and edges between them by number."""

    nodes: list[Node]
    edges: list[tuple[int, int]]


@dataclass(frozen=True)
class Untrained:
    """A parameter or statistic that no gradient changes, with the reason."""

    name: str
    type: str
    reason: str


@dataclass(frozen=True)
class _Listed:
    """A node by the keys of what it reads and of its results; `inside` is the node around it."""

    name: str
    op: str
    reads: list[Hashable]
    results: list[Hashable]
    inside: str | None = None
    kind: Literal["node", "input", "output"] = "node"


def model_graph(subject: Subject, covered: Coverage) -> Graph:
    """The graph of a model: that of its ONNX file, or of its program if it comes from no file."""
    model = subject.model
    program = inline_calls(specialize(model, training=None), "main", subject.rules)
    if model.skeleton is not None:
        listed = list(_listed_in_file(model, model.skeleton.graph))
    else:
        listed = list(_listed_in_program(model, program))
    tuples = {
        var.name: value.tuple_value.name
        for var, value in program.bindings
        if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Var)
    }
    calls_of = _calls_of_nodes(listed, covered, {**program.aliases, **tuples})
    types = {var.name: _type_text(var.ty) for var in program.variables()}
    types.update({name: types[own] for name, own in program.aliases.items() if own in types})
    params = model.params.keys() | model.state.keys()
    nodes, edges = [], []
    computed_by: dict[Hashable, int] = {}
    for number, entry in enumerate(listed):
        sources = dict.fromkeys(computed_by[key] for key in entry.reads if key in computed_by)
        edges += [(source, number) for source in sources]
        computed_by.update(dict.fromkeys(entry.results, number))
        nodes.append(_node(entry, calls_of, types, params))
    return Graph(nodes, edges)


def _calls_of_nodes(
    listed: Iterable[_Listed], covered: Coverage, values: Mapping[str, str]
) -> dict[str, list[Row]]:
    """What each node became, by its name; one in a branch or body has what became of that.

    `values` has other names of results, and the names of the tuples that they are in.
    """
    calls_at: dict[str, list[Row]] = defaultdict(list)
    for row in [*covered.rows, *covered.off_path]:
        for place in row.where:
            calls_at[place].append(row)
    calls_of: dict[str, list[Row]] = {}
    for entry in reversed(list(listed)):  # what is around a node is listed behind it
        # Places of which the node is not known, such as that of an If, are named by their value.
        results = list(map(_name, entry.results))
        names = [entry.name, *results, *(values.get(name, name) for name in results)]
        own = next((calls_at[name] for name in names if name in calls_at), [])
        calls_of[entry.name] = own or calls_of.get(entry.inside or "", [])
    return calls_of


def untrained(subject: Subject) -> list[Untrained]:
    """The parameters and statistics of a model that no gradient changes."""
    model, trained = subject.model, set(subject.wrt)
    reasons = {name: _why(model, name) for name in model.params if name not in trained}
    reasons |= dict.fromkeys(model.state, "a running statistic, which batch norms update")
    arrays = {**model.params, **model.state}
    return [
        Untrained(name, f"{arrays[name].dtype}{list(arrays[name].shape)}", reason)
        for name, reason in reasons.items()
    ]


def _why(model: Model, name: str) -> str:
    """Why a parameter does not train."""
    if model.params[name].dtype.kind in "biu":
        return "integers and booleans have no gradient"
    if name in model.frozen:
        return "frozen"
    if name in model.constants:
        notes = [note for note in model.notes if " do not train: " in note and f"'{name}'" in note]
        return notes[0].partition(" do not train: ")[0] if notes else "a constant of the model"
    return "not among the weights that wrt= names"


def _listed_in_file(model: Model, graph: onnx.GraphProto) -> Iterator[_Listed]:
    """Yield the inputs, the nodes and the outputs of a file."""
    for name in model.inputs:
        yield _Listed(name, "input", [], [name], kind="input")
    yield from _nodes_of(graph, {}, None)
    for name in model.outputs:
        yield _Listed(name, "output", [name], [], kind="output")


def _nodes_of(
    graph: onnx.GraphProto, outer_names: Mapping[str, str], inside: str | None
) -> Iterator[_Listed]:
    """Yield the nodes of a graph, each behind those of the branches and bodies that it holds.

    `outer_names` has the names outside for what bodies call their parameters: ONNX pairs both in
    order.
    """
    for node in graph.node:
        given = [outer_names.get(name, name) for name in node.input]
        reads: list[Hashable] = [name for name in given if name]
        for inner in subgraphs(node):
            formal = {p.name: name for p, name in zip(inner.input, given, strict=False)}
            yield from _nodes_of(inner, {**outer_names, **formal}, node.name)
            reads += [output.name for output in inner.output]
        yield _Listed(node.name, node.op_type, reads, [*filter(None, node.output)], inside)


def _listed_in_program(model: Model, program: Program) -> Iterator[_Listed]:
    """Yield the inputs, the calls and the results of a program; tuples are seen through."""
    for var in program.params[: len(model.inputs)]:
        yield _Listed(var.name, "input", [], [var], kind="input")
    inside_tuple: dict[Any, list[Any]] = {}

    def read(value: Any) -> list[Hashable]:
        variables = variables_in(value)
        return [key for var in variables for key in inside_tuple.get(var, [var])]

    for var, value in program.bindings:
        if isinstance(value, relax.Call | relax.If):
            yield _Listed(location(var, value), op_name(value), read(value), [var])
        else:
            inside_tuple[var] = read(value.value if isinstance(value, relax.MatchCast) else value)
    name = ", ".join(model.outputs)
    yield _Listed(name, "output", read(program.result), [], kind="output")


def _node(
    entry: _Listed,
    calls_of: Mapping[str, list[Row]],
    types: Mapping[str, str],
    params: Iterable[str],
) -> Node:
    """A listed node with what is known of its gradient."""
    calls = calls_of[entry.name] if entry.kind == "node" else []
    origins = {row.provenance for row in calls}
    origin = next((name for name in _ORDER if name in origins), FOLDED)
    names = list(map(_name, entry.results))
    reads = dict.fromkeys(map(_name, entry.reads))
    return Node(
        entry.name,
        entry.op,
        entry.kind,
        origin if entry.kind == "node" else "",
        tuple(calls),
        tuple(name for name in reads if name in params),
        tuple(f"{name}: {types[name]}" if name in types else name for name in names),
    )


def _name(key: Any) -> str:
    """The name of a value, given by its name or its variable."""
    return str(getattr(key, "name", key))


def _type_text(ty: Any) -> str:
    """A type as text, in short."""
    if not has_shape(ty):
        return str(ty)
    return f"{ty.dtype}[{', '.join(map(dimension_text, ty.shape.values))}]"
