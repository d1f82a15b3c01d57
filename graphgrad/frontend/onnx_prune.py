"""What of a training graph inference has no use for: losses, and the labels that they read."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from .onnx_graph import all_nodes, output_names, readers, remove_nodes, subgraphs

_LOSSES = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})


def drop_losses(graph: onnx.GraphProto) -> None:
    """Remove the outputs that a loss operator computes, and what only they need, in place.

    A graph all of whose outputs come from a loss is left as it is.
    """
    after_loss: set[str] = set()
    for node in graph.node:
        if node.op_type in _LOSSES or not after_loss.isdisjoint(_read(node)):
            after_loss.update(node.output)
    kept = [output for output in graph.output if output.name not in after_loss]
    if not kept or len(kept) == len(graph.output):
        return
    before = readers(graph).keys()
    outputs = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    del graph.output[:]
    graph.output.extend(outputs)
    remove_unneeded_nodes(graph)
    read = readers(graph).keys() | output_names(graph)
    for held in (graph.input, graph.initializer):
        for position in reversed(range(len(held))):
            name = held[position].name
            if name in before and name not in read:
                del held[position]


def remove_unneeded_nodes(graph: onnx.GraphProto) -> None:
    """Remove the nodes that no output of the graph depends on."""
    needed = {output.name for output in graph.output}
    unneeded = set()
    for node in reversed(graph.node):
        if needed.isdisjoint(node.output):
            unneeded.add(node.output[0])
        else:
            needed.update(_read(node))
    remove_nodes(graph, unneeded)


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, itself or in the graphs that it holds."""
    yield from node.input
    for inner in subgraphs(node):
        yield from (output.name for output in inner.output)
        for held in all_nodes(inner):
            yield from held.input
