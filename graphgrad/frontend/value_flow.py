"""How the values of an ONNX graph depend on each other: on inputs, on weights, by derivatives."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from .onnx_graph import FLOAT_TYPES, Reader, all_nodes, attribute, output_names, readers, subgraphs

# Inputs that set how a node works, as an attribute would. A float there is not a weight.
_SETTINGS = frozenset(
    {
        ("Clip", 1),
        ("Clip", 2),
        ("Dropout", 1),
        ("NonMaxSuppression", 3),
        ("NonMaxSuppression", 4),
        ("OneHot", 1),
        ("OneHot", 2),
        ("Pad", 2),
        ("Range", 0),
        ("Range", 1),
        ("Range", 2),
        ("Resize", 1),
        ("Resize", 2),
        ("Upsample", 1),
    }
)

# Operators whose results do not change with what they read, or are no floats.
_FLAT = frozenset(
    {
        "And",
        "ArgMax",
        "ArgMin",
        "Bernoulli",
        "Ceil",
        "ConstantOfShape",
        "Equal",
        "EyeLike",
        "Floor",
        "Greater",
        "GreaterOrEqual",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "Multinomial",
        "NonMaxSuppression",
        "NonZero",
        "Not",
        "Or",
        "RandomNormalLike",
        "RandomUniformLike",
        "Round",
        "Shape",
        "Sign",
        "Size",
        "Xor",
    }
)

# Operators that give the elements of their input 0, in another shape, order or dtype.
_VIEWS = frozenset(
    {
        "Cast",
        "CastLike",
        "Expand",
        "Flatten",
        "Identity",
        "Reshape",
        "Slice",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)


def is_setting(reader: Reader) -> bool:
    """Whether a node reads a setting there, rather than a weight or a statistic."""
    return (reader.node.op_type, reader.index) in _SETTINGS


class ValueFlow:
    """The dependences of a graph, and of the graphs in it.

    Attributes
    ----------
    readers : dict of str to list of Reader
    producers : dict of str to onnx.NodeProto
    inputs : set of str
    data : set of str
        Values that depend on the elements of an input, not only on its shape.
    differentiated : set of str
        Values whose gradient may be other than zero: a derivative leads from them to an output.
    """

    def __init__(self, graph: onnx.GraphProto):
        nodes = list(all_nodes(graph))
        self.readers = readers(graph)
        self.producers = {name: node for node in nodes for name in node.output if name}
        self.inputs = {value.name for value in graph.input}
        self.inputs -= {tensor.name for tensor in graph.initializer}
        self.data = set(self.inputs)
        for node in nodes:
            # What a loop gives to its body is not followed.
            for inner in subgraphs(node):
                self.data.update(value.name for value in inner.input)
            if node.op_type not in ("Shape", "Size") and not self.data.isdisjoint(_read(node)):
                self.data.update(filter(None, node.output))
        self.differentiated = output_names(graph)
        for node in reversed(nodes):
            if not self.differentiated.isdisjoint(node.output):
                self.differentiated.update(_differentiated(node))

    def uses(self, name: str) -> Iterator[Reader]:
        """Yield where the elements of a value are read, directly or through views."""
        worklist = [name]
        while worklist:
            for reader in self.readers.get(worklist.pop(), []):
                if is_view(reader):
                    worklist.append(reader.node.output[0])
                else:
                    yield reader

    def source(self, name: str) -> str:
        """The value whose elements a value has, if it is a view, else that value itself."""
        while name in self.producers and self.producers[name].op_type in _VIEWS:
            name = self.producers[name].input[0]
        return name

    def meets_data(self, reader: Reader) -> bool:
        """Whether another input of the node that reads depends on data."""
        others = (name for index, name in enumerate(reader.node.input) if index != reader.index)
        return not self.data.isdisjoint(others)


def is_view(reader: Reader) -> bool:
    """Whether a node gives what it reads there in another shape, order or dtype."""
    return reader.node.op_type in _VIEWS and reader.index == 0


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield what a node reads, itself or in the graphs that it holds."""
    yield from node.input
    for inner in subgraphs(node):
        for inner_node in all_nodes(inner):
            yield from inner_node.input


def _differentiated(node: onnx.NodeProto) -> Iterator[str]:
    """Yield those inputs of a node that a derivative of its outputs may be other than zero in."""
    is_flat = node.op_type in _FLAT or (
        node.op_type == "Cast" and attribute(node, "to", 0) not in FLOAT_TYPES
    )
    if not is_flat:
        for index, name in enumerate(node.input):
            if not is_setting(Reader(node, index)):
                yield name
