"""Repair of an ONNX model: the form that the importer reads, with names that training can use."""

from __future__ import annotations

import os
from collections import Counter

import onnx
import onnx.inliner

from ..errors import ModelError
from .constant_weights import lift_constant_weights
from .node_limit import nodes_in, nodes_when_inlined, refuse_many_nodes
from .onnx_constants import densify
from .onnx_graph import all_nodes, opset, output_names, readers
from .onnx_importer import Converters, is_supported
from .onnx_load import INLINER_ERRORS, check, load
from .split_initializers import split_initializers
from .standard_functions import expand_standard_functions


def repair(
    path_or_proto: str | os.PathLike[str] | onnx.ModelProto,
    custom: Converters,
) -> tuple[onnx.ModelProto, list[str]]:
    """A repaired copy of an ONNX model, and notes on what was repaired.

    After it, every node has a name; local functions are inlined, and operators that only the
    standard's own definition translates are written out; each Constant holds one dense tensor,
    which is not the weight of a layer; no initializer is listed among the inputs, read by nobody,
    or shared by an exporter's doing; and no batch norm lists statistics that nobody reads among
    its outputs.

    Parameters
    ----------
    path_or_proto : path or onnx.ModelProto
        The proto is not changed.
    custom : mapping
        Converters of the user's own, by domain and operator.

    Raises
    ------
    ModelError
        If the model cannot be read, is not valid ONNX, holds strings, or has operators that are
        not supported: all of those are named, with their counts and nodes.
    """
    # Functions are written out first: only then do all nodes and all readers of weights exist.
    proto = load(path_or_proto)
    refuse_many_nodes(nodes_in(proto.graph), "what the file lists")
    notes = _inline_functions(proto, custom)
    notes += expand_standard_functions(proto, custom)
    _name_nodes(proto.graph)
    _refuse_unsupported(proto.graph, custom)
    check(proto)
    notes += densify(proto.graph)
    notes += _remove_repeated_inputs(proto)
    notes += lift_constant_weights(proto.graph)
    notes += split_initializers(proto.graph)
    notes += _remove_unread_initializers(proto.graph)
    _remove_unread_statistics(proto)
    return proto, notes


def _inline_functions(proto: onnx.ModelProto, custom: Converters) -> list[str]:
    """Inline local functions, but for those that the user has an operator for."""
    names = [
        function.name
        for function in proto.functions
        if (function.domain, function.name) not in custom
    ]
    if not names:
        return []
    check(proto)  # the inliner trusts what it reads
    custom_functions = [
        (function.domain, function.name)
        for function in proto.functions
        if (function.domain, function.name) in custom
    ]
    refuse_many_nodes(nodes_when_inlined(proto, custom_functions), "inlining the model's functions")
    try:
        inlined = onnx.inliner.inline_selected_functions(proto, custom_functions, exclude=True)
    except INLINER_ERRORS as error:
        raise ModelError(f"the model's functions {names} cannot be inlined: {error}") from error
    proto.CopyFrom(inlined)
    return [f"model-local functions inlined: {', '.join(names)}"]


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Name the nodes that have no name after their operator and position, e.g. ``Conv_3``."""
    used_names = {node.name for node in all_nodes(graph)}
    for position, node in enumerate(all_nodes(graph)):
        if not node.name:
            name = f"{node.op_type}_{position}"
            node.name = f"{name}_unnamed" if name in used_names else name


def _refuse_unsupported(graph: onnx.GraphProto, custom: Converters) -> None:
    unsupported = [node for node in all_nodes(graph) if not is_supported(node, custom)]
    if not unsupported:
        return
    counts = Counter(_operator(node) for node in unsupported)
    lines = [
        f"  {operator} ({count}): {[n.name for n in unsupported if _operator(n) == operator]}"
        for operator, count in sorted(counts.items())
    ]
    raise ModelError(
        "the model has operators that the importer does not know:\n"
        + "\n".join(lines)
        + "\nexport the model without them, or say what they compute: "
        "from_onnx(…, custom_ops={(domain, operator): function})"
    )


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _remove_repeated_inputs(proto: onnx.ModelProto) -> list[str]:
    """Remove initializers from the inputs: IR version 3 wants them there, later ones may."""
    initializers = {tensor.name for tensor in proto.graph.initializer}
    repeated = [value for value in proto.graph.input if value.name in initializers]
    for value in repeated:
        proto.graph.input.remove(value)
    proto.ir_version = max(proto.ir_version, 4)  # the first that lets initializers stand alone
    if not repeated:
        return []
    return [f"{len(repeated)} initializers were listed among the inputs: taken as weights"]


def _remove_unread_initializers(graph: onnx.GraphProto) -> list[str]:
    read_names = readers(graph).keys() | output_names(graph)
    unread_names = [tensor.name for tensor in graph.initializer if tensor.name not in read_names]
    for position in reversed(range(len(graph.initializer))):
        if graph.initializer[position].name not in read_names:
            del graph.initializer[position]
    return [f"initializers that no node reads left out: {unread_names}"] * bool(unread_names)


def _remove_unread_statistics(proto: onnx.ModelProto) -> None:
    """Remove the outputs of a batch norm that nobody reads.

    Before opset 14 a node has one output or, if it trains, five: those keep their places, without
    names.
    """
    read_names = readers(proto.graph).keys() | output_names(proto.graph)
    for node in all_nodes(proto.graph):
        if node.op_type != "BatchNormalization":
            continue
        # From opset 14 on, trailing outputs may be missing.
        while opset(proto) >= 14 and len(node.output) > 1 and node.output[-1] not in read_names:
            node.output.pop()
        for index in range(1, len(node.output)):
            if node.output[index] not in read_names:
                node.output[index] = ""
