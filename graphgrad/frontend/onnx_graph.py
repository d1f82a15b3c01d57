"""Queries and small edits of an ONNX graph: who reads a value, inner graphs, unused names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper

FLOAT_TYPES = (
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
)

STANDARD_DOMAINS = ("", "ai.onnx")

# The inputs of BatchNormalization, by index, that are its running statistics.
STATISTICS = {3: "running_mean", 4: "running_var"}


@dataclass(frozen=True)
class Reader:
    """One use of a value: input number `index` of `node`."""

    node: onnx.NodeProto
    index: int

    @property
    def is_statistic(self) -> bool:
        """Whether a batch norm reads its running mean or variance here."""
        return self.node.op_type == "BatchNormalization" and self.index in STATISTICS

    def redirect(self, name: str) -> None:
        """Read the value `name` here instead."""
        self.node.input[self.index] = name


def opset(proto: onnx.ModelProto) -> int:
    """The version of the standard operator set that the model uses."""
    versions = [
        operator_set.version
        for operator_set in proto.opset_import
        if operator_set.domain in STANDARD_DOMAINS
    ]
    return versions[0] if versions else 1


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """The value of an attribute, or `default` where the node does not have it."""
    for candidate in node.attribute:
        if candidate.name == name:
            return helper.get_attribute_value(candidate)
    return default


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that a node holds: branches and loop bodies."""
    for node_attribute in node.attribute:
        if node_attribute.type == onnx.AttributeProto.GRAPH:
            yield node_attribute.g
        elif node_attribute.type == onnx.AttributeProto.GRAPHS:
            yield from node_attribute.graphs


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs inside it."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def readers(graph: onnx.GraphProto) -> dict[str, list[Reader]]:
    """The uses of each value that some node reads, by name; those of inner graphs too.

    The keys are the names that are read. Any other name, looked up, has an empty list.
    """
    readers_by_name: dict[str, list[Reader]] = defaultdict(list)
    for node in all_nodes(graph):
        for index, name in enumerate(node.input):
            if name:  # the name of an input that is left out is empty
                readers_by_name[name].append(Reader(node, index))
    return readers_by_name


def output_names(graph: onnx.GraphProto) -> set[str]:
    """The names of the graph's outputs, and of the outputs of the graphs inside it."""
    names = {output.name for output in graph.output}
    for node in all_nodes(graph):
        for inner in subgraphs(node):
            names.update(output.name for output in inner.output)
    return names


def is_float(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor is of a dtype that can train."""
    return tensor.data_type in FLOAT_TYPES


def unique_name(graph: onnx.GraphProto, wanted: str) -> str:
    """`wanted`, with a number appended if some value of the graph has that name already."""
    used_names = {name for node in all_nodes(graph) for name in (*node.input, *node.output)}
    used_names.update(value.name for value in (*graph.initializer, *graph.input, *graph.output))
    name, number = wanted, 1
    while name in used_names:
        name, number = f"{wanted}_{number}", number + 1
    return name


def add_copy(graph: onnx.GraphProto, tensor: onnx.TensorProto, name: str) -> None:
    """Append a copy of an initializer under another name."""
    copy = graph.initializer.add()
    copy.CopyFrom(tensor)
    copy.name = name


def remove_nodes(graph: onnx.GraphProto, outputs: Collection[str]) -> None:
    """Remove the nodes that make one of `outputs`; an empty name is no output."""
    names = set(filter(None, outputs))
    if not names:
        return
    remaining = [
        onnx.NodeProto.FromString(node.SerializeToString())
        for node in graph.node
        if names.isdisjoint(node.output)
    ]
    del graph.node[:]
    graph.node.extend(remaining)
