"""Removal of losses, and of the labels that they read, from a graph for inference."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from .onnx_graph import output_names, readers, remove_nodes, subgraphs

_LOSSES = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})


def drop_losses(graph: onnx.GraphProto) -> None:
    """Remove the outputs that a loss operator computes, and what only they need, in place.

    A graph all of whose outputs come from a loss is left as it is.
    """
    after_loss: set[str] = set()
    for node in graph.node:
        if node.op_type in _LOSSES or not after_loss.isdisjoint(_read(node)):
            after_loss.update(filter(None, node.output))  # an empty name is no output
    remaining_outputs = [output for output in graph.output if output.name not in after_loss]
    if not remaining_outputs or len(remaining_outputs) == len(graph.output):
        return
    # Inputs that nothing read even before belong to the model's signature, and stay.
    read_before = readers(graph).keys()
    outputs = [
        onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in remaining_outputs
    ]
    del graph.output[:]
    graph.output.extend(outputs)
    remove_unneeded_nodes(graph)
    still_read = readers(graph).keys() | output_names(graph)
    for values in (graph.input, graph.initializer):
        for position in reversed(range(len(values))):
            name = values[position].name
            if name in read_before and name not in still_read:
                del values[position]


def remove_unneeded_nodes(graph: onnx.GraphProto) -> None:
    """Remove the nodes that no output of the graph depends on, in the graphs inside it, too."""
    for node in graph.node:
        for inner in subgraphs(node):
            remove_unneeded_nodes(inner)
    # Nodes are in topological order, so that backwards each reader comes before what it reads.
    needed = {output.name for output in graph.output}
    unneeded: set[str] = set()
    for node in reversed(graph.node):
        if needed.isdisjoint(node.output):
            unneeded.update(node.output)
        else:
            needed.update(_read(node))
    remove_nodes(graph, unneeded)


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, itself or in the graphs that it holds."""
    yield from filter(None, node.input)  # the name of an input that is left out is empty
    for inner in subgraphs(node):
        # An inner graph may return a value of the outer one that none of its nodes reads.
        yield from output_names(inner)
        yield from readers(inner)
