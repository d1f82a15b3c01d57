"""Sequences and optionals that a model takes, as inputs of their own for each of their tensors."""

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
    """Replace inputs that are sequences by tensors, as many as `shapes` says.

    A sequence ``s`` becomes the inputs ``s[0]``, ``s[1]``, …; an optional is taken as given.

    Parameters
    ----------
    graph : onnx.GraphProto
        Changed in place.
    shapes : mapping or None
        As of `from_onnx`: for a sequence the list of the shapes of its tensors.

    Returns
    -------
    shapes : mapping or None
        Those of tensors.
    notes : list of str

    Raises
    ------
    ModelError
        How many tensors an input holds is not said; or it holds none that could be imported.
    InputError
        The shapes given are not those of such tensors.
    """
    optionals = [value for value in graph.input if value.type.HasField("optional_type")]
    for value in optionals:
        held = onnx.TypeProto()
        held.CopyFrom(value.type.optional_type.elem_type)
        value.type.CopyFrom(held)
    notes = [f"optional inputs taken as given: {_names(optionals)}"] * bool(optionals)
    sequences = [value for value in graph.input if value.type.HasField("sequence_type")]
    if not sequences or not (shapes is None or isinstance(shapes, Mapping)):
        return cast(Any, shapes), notes
    rest: dict[str, Any] = dict(shapes or {})
    given = {value.name: _given(value, rest.pop(value.name, None)) for value in sequences}
    kept = [part for value in graph.input for part in given.get(value.name, [value])]
    nodes = [_constructed(graph, value, given[value.name]) for value in sequences]
    nodes += list(graph.node)
    del graph.input[:], graph.node[:]
    graph.input.extend(kept)
    graph.node.extend(nodes)
    return rest, [*notes, f"sequences taken apart into their tensors: {_names(sequences)}"]


def element_name(sequence: str, index: int) -> str:
    """The name of the input or output that is one tensor of a sequence."""
    return f"{sequence}[{index}]"


def _given(value: onnx.ValueInfoProto, shapes: Any) -> list[onnx.ValueInfoProto]:
    """An input for each tensor of a sequence.

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
        part = element_name(name, index)
        check_sizes(part, shape)
        sizes = _in_both(part, shape, element.tensor_type)
        inputs.append(helper.make_tensor_value_info(part, dtype, sizes))
    return inputs


def _in_both(name: str, shape: Shape, ty: Any) -> list[int | None]:
    """The shape of a sequence's tensors, by a given shape and the file's type together.

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
        fixed = ["?" if dim is None else dim for dim in dims]
        raise InputError(f"shapes: {name!r} is {fixed} by the file, given {tuple(shape)}")
    return [dim if size is None else size for dim, size in zip(dims, shape, strict=True)]


def _constructed(
    graph: onnx.GraphProto, value: onnx.ValueInfoProto, inputs: Sequence[onnx.ValueInfoProto]
) -> onnx.NodeProto:
    """The node that makes a sequence of inputs."""
    operator = "SequenceConstruct" if inputs else "SequenceEmpty"
    taken = {node.name for node in all_nodes(graph)}
    name = f"{operator}_{value.name}"
    while name in taken:
        name += "_input"
    attributes = {}
    if not inputs:
        attributes["dtype"] = value.type.sequence_type.elem_type.tensor_type.elem_type
    names = [part.name for part in inputs]
    return helper.make_node(operator, names, [value.name], name, **attributes)


def _names(values: Sequence[onnx.ValueInfoProto]) -> str:
    return ", ".join(value.name for value in values)
