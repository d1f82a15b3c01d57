"""The most nodes that an import makes of a model: a small file can stand for any number.

Functions that call others twice double the nodes with each level, and loops that are written out
multiply those of their bodies. What that would give is counted first, and nothing is written out
above the limit; nor is a file read on that lists more. A node counts once for each of its outputs,
because a part of a Split is as much work as a node.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import onnx

from ..errors import ArgumentError, ModelError
from .onnx_graph import subgraphs

VARIABLE = "GRAPHGRAD_MAX_NODES"
"""The environment variable that sets another limit."""

_MAX_NODES = 50_000
"""The limit where the variable is not set. A node takes a millisecond to import and differentiate,
and some more to compile, so that this many take minutes."""

Function = tuple[str, str]
"""The domain and the name of a local function."""


def refuse_many_nodes(nodes: int, work: str) -> None:
    """Raise if so many nodes are more than an import makes.

    Parameters
    ----------
    nodes : int
    work : str
        What would make them, as the beginning of a sentence.

    Raises
    ------
    ModelError
        They are; the message names the limit, and how to raise it.
    ArgumentError
        The environment variable is no number.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if text and not text.isdecimal():
        raise ArgumentError(f"{VARIABLE}={text!r} must be a number of nodes")
    limit = int(text) if text else _MAX_NODES
    if nodes > limit:
        raise ModelError(
            f"{work} makes {_rounded(nodes)} nodes, and an import makes {limit:,} at most; if they "
            f"are meant, set the environment variable {VARIABLE} to a larger number"
        )


def nodes_in(graph: onnx.GraphProto) -> int:
    """The number of nodes of a graph, with those of the graphs inside it."""
    return sum(count(node) + sum(map(nodes_in, subgraphs(node))) for node in graph.node)


def count(node: onnx.NodeProto) -> int:
    """How many nodes a node counts for, without the graphs inside it."""
    return max(1, len(node.output))


def nodes_when_inlined(proto: onnx.ModelProto, kept: Iterable[Function]) -> int:
    """The number of nodes that a model has when its local functions are inlined, but for some.

    Raises
    ------
    ModelError
        A function calls itself, directly or through others.
    """
    functions = {(function.domain, function.name): function for function in proto.functions}
    for key in kept:
        functions.pop(key, None)
    sizes: dict[Function, int] = {}
    # Without recursion, because functions may be nested deeper than Python's stack. A function is
    # on the path from when it is first looked at until all that it calls have sizes.
    path: dict[Function, None] = {}
    waiting = list(functions)
    while waiting:
        key = waiting[-1]
        if key in sizes:
            waiting.pop()
            path.pop(key, None)
            continue
        unsized = [
            callee for callee in _called(functions[key].node) if callee in functions.keys() - sizes
        ]
        if not unsized:
            sizes[key] = _inlined_size(functions[key].node, sizes)
            continue
        path[key] = None
        if circle := next((callee for callee in unsized if callee in path), None):
            raise ModelError(f"the model's function {circle[1]!r} calls itself")
        waiting += unsized
    return _inlined_size(proto.graph.node, sizes)


def _called(nodes: Iterable[onnx.NodeProto]) -> set[Function]:
    """The operators of nodes, with those of the graphs inside them."""
    called: set[Function] = set()
    for node in nodes:
        called.add((node.domain, node.op_type))
        for graph in subgraphs(node):
            called |= _called(graph.node)
    return called


def _inlined_size(nodes: Iterable[onnx.NodeProto], sizes: dict[Function, int]) -> int:
    """The number of nodes that some nodes become, given those that functions become."""
    return sum(
        sizes.get((node.domain, node.op_type), count(node))
        + sum(_inlined_size(graph.node, sizes) for graph in subgraphs(node))
        for node in nodes
    )


def _rounded(number: int) -> str:
    """A number as text: in full while it is short, else in powers of ten."""
    return f"{number:,}" if number < 10**12 else f"some 10^{len(str(number)) - 1}"
