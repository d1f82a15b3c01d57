"""Inputs that are sequences or optionals, replaced by an input for each tensor in them.

A Relax function takes tensors: how many a sequence holds must be said when it is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import onnx
from onnx import helper

from ..errors import InputError, ModelError
from .onnx_graph import all_nodes
from .onnx_shapes import Shape, check_sizes

Shapes = Mapping[str, Shape | Sequence[Shape]]


def spread_inputs(
    graph: onnx.GraphProto, shapes: Shapes | None
) -> tuple[Mapping[str, Shape] | None, list[str]]:
    """Replace each input that is a sequence by tensors; `shapes` gives their number and shapes.

    A sequence ``s`` becomes the inputs ``s[0]``, ``s[1]``, …; an input that is an optional is taken
    to have a value.

    Parameters
    ----------
    graph : onnx.GraphProto
        Changed in place.
    shapes : mapping or None
        As of `from_onnx`: for a sequence the list of the shapes of its tensors.

    Returns
    -------
    shapes : mapping or None
        What is left of `shapes`: those of inputs that were tensors all along.
    notes : list of str
        Notes on what was replaced.

    Raises
    ------
    ModelError
        How many tensors an input holds is not said; or it holds none that could be imported.
    InputError
        The shapes given are not those of such tensors.
    """
    optionals = [value for value in graph.input if value.type.HasField("optional_type")]
    for value in optionals:  # an optional with a value has the type of that value
        element_type = onnx.TypeProto()
        element_type.CopyFrom(value.type.optional_type.elem_type)
        value.type.CopyFrom(element_type)
    notes = [f"optional inputs taken as given: {_names(optionals)}"] * bool(optionals)
    sequences = [value for value in graph.input if value.type.HasField("sequence_type")]
    if not sequences or not (shapes is None or isinstance(shapes, Mapping)):
        return cast(Any, shapes), notes
    tensor_shapes: dict[str, Any] = dict(shapes or {})
    element_inputs = {
        value.name: _given(value, tensor_shapes.pop(value.name, None)) for value in sequences
    }
    inputs = [
        graph_input
        for value in graph.input
        for graph_input in element_inputs.get(value.name, [value])
    ]
    # The sequence itself, which the other nodes read, is built from the new inputs.
    nodes = [_constructed(graph, value, element_inputs[value.name]) for value in sequences]
    nodes += list(graph.node)
    del graph.input[:], graph.node[:]
    graph.input.extend(inputs)
    graph.node.extend(nodes)
    return tensor_shapes, [*notes, f"sequences taken apart into their tensors: {_names(sequences)}"]


def element_name(sequence: str, index: int) -> str:
    """The name of the input or output that is one tensor of a sequence."""
    return f"{sequence}[{index}]"


def _given(value: onnx.ValueInfoProto, shapes: Any) -> list[onnx.ValueInfoProto]:
    """An input for each tensor of a sequence, whose shapes the user has given.

    The names of dimensions are not kept: tensors of a sequence may differ in them.
    """
    name, element = value.name, value.type.sequence_type.elem_type
    if not element.HasField("tensor_type"):
        raise ModelError(f"input {name!r} is a sequence of what are no tensors")
    if shapes is None:
        raise ModelError(
            f"input {name!r} is a sequence: how many tensors it holds, and so what is computed, is "
            "known at run time only; say it by their shapes, e.g. "
            f"from_onnx(…, shapes={{{name!r}: [(2, 3), (2, 5)]}}), which makes them the inputs "
            f"{element_name(name, 0)!r} and {element_name(name, 1)!r}"
        )
    if not isinstance(shapes, Sequence) or isinstance(shapes, str):
        raise InputError(
            f"shapes: input {name!r} is a sequence: expected a list of shapes, given {shapes!r}"
        )
    dtype, inputs = element.tensor_type.elem_type, []
    for index, shape in enumerate(shapes):
        tensor_name = element_name(name, index)
        check_sizes(tensor_name, shape)
        sizes = _in_both(tensor_name, shape, element.tensor_type)
        inputs.append(helper.make_tensor_value_info(tensor_name, dtype, sizes))
    return inputs


def _in_both(name: str, shape: Shape, ty: Any) -> list[int | None]:
    """The shape of a tensor of a sequence, from the given shape and the file's type together.

    None stands for an extent that neither of them says.

    Raises
    ------
    InputError
        They contradict each other.
    """
    if not ty.HasField("shape"):
        return list(shape)
    dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in ty.shape.dim]
    if len(dims) != len(shape) or any(
        None not in (dim, size) and dim != size for dim, size in zip(dims, shape, strict=True)
    ):
        file_shape = ["?" if dim is None else dim for dim in dims]
        raise InputError(f"shapes: {name!r} is {file_shape} by the file, given {tuple(shape)}")
    return [dim if size is None else size for dim, size in zip(dims, shape, strict=True)]


def _constructed(
    graph: onnx.GraphProto, value: onnx.ValueInfoProto, inputs: Sequence[onnx.ValueInfoProto]
) -> onnx.NodeProto:
    """The node that makes a sequence of inputs."""
    operator = "SequenceConstruct" if inputs else "SequenceEmpty"
    used_names = {node.name for node in all_nodes(graph)}
    name = f"{operator}_{value.name}"
    while name in used_names:
        name += "_input"
    attributes = {}
    if not inputs:
        attributes["dtype"] = value.type.sequence_type.elem_type.tensor_type.elem_type
    names = [element_input.name for element_input in inputs]
    return helper.make_node(operator, names, [value.name], name, **attributes)


def _names(values: Sequence[onnx.ValueInfoProto]) -> str:
    return ", ".join(value.name for value in values)
