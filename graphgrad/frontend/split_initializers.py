"""Splitting of initializers that an exporter merged, so that each has a tensor of its own again.

An exporter in inference form keeps one tensor for all initializers of equal value. In a freshly
initialized model that ties the scales, biases and running statistics of different batch norms,
which training must move apart. Tensors that a model truly shares are read directly by all their
readers, and stay shared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

import onnx

from .onnx_graph import (
    STATISTICS,
    Reader,
    add_copy,
    is_float,
    output_names,
    readers,
    remove_nodes,
    unique_name,
)
from .value_flow import is_setting


def split_initializers(graph: onnx.GraphProto) -> list[str]:
    """Split merged float initializers, in place.

    Returns
    -------
    list of str
        Notes on what was split.
    """
    _join_clones(graph)
    # In this order: statistics must be initializers before they can be split, and Identity nodes
    # hide the readers behind them.
    return [
        *_hoist_constant_statistics(graph),
        *_split_identities(graph),
        *_split_statistics(graph),
        *_split_settings(graph),
    ]


def _hoist_constant_statistics(graph: onnx.GraphProto) -> list[str]:
    """Make running statistics held by Constant nodes initializers: training must update them."""
    notes = []
    readers_by_name = readers(graph)
    for constant in [node for node in graph.node if node.op_type == "Constant"]:
        for reader in readers_by_name.get(constant.output[0], []):
            if reader.is_statistic:
                name = unique_name(graph, f"{reader.node.name}.{STATISTICS[reader.index]}")
                add_copy(graph, constant.attribute[0].t, name)
                reader.redirect(name)
                notes.append(f"Constant {constant.name!r} made the running statistic {name!r}")
    return notes


def _join_clones(graph: onnx.GraphProto) -> None:
    """Let who reads a clone of a float initializer read the initializer.

    PyTorch's newer exporter writes a clone, an alias and a dropout that drops nothing as Identity,
    under the names of its own nodes. The weight behind is one, however often it is cloned.
    """
    readers_by_name = readers(graph)
    graph_outputs = output_names(graph)
    weights = {tensor.name for tensor in graph.initializer if is_float(tensor)}
    joined = set()
    for node in graph.node:
        is_clone = node.op_type == "Identity" and node.name == f"node_{node.output[0]}"
        if is_clone and node.input[0] in weights and node.output[0] not in graph_outputs:
            # Later clones of this one read the initializer from here on.
            for reader in readers_by_name.get(node.output[0], []):
                reader.redirect(node.input[0])
            joined.add(node.output[0])
    remove_nodes(graph, joined)


def _split_identities(graph: onnx.GraphProto) -> list[str]:
    """Replace Identity nodes that read a float initializer by an initializer of their own.

    An exporter writes ``b = Identity(a)`` where two parameters had equal values.
    """
    notes = []
    readers_by_name = readers(graph)
    graph_outputs = output_names(graph)
    identities = {
        node.output[0] for node in graph.node if node.op_type == "Identity"
    } - graph_outputs
    tensors = {tensor.name: tensor for tensor in graph.initializer if is_float(tensor)}
    removed: set[str] = set()
    worklist = deque(tensors)
    while worklist:
        name = worklist.popleft()
        tensor_readers = readers_by_name.get(name, [])
        # Chains of Identity nodes are followed: a copy goes to the worklist as a tensor of its own.
        copies = [
            reader.node.output[0]
            for reader in tensor_readers
            if reader.node.output[0] in identities
        ]
        removed.update(copies)
        if not copies:
            continue
        # With this one reader the tensor is not shared: it has two names, and the first one stays.
        if len(tensor_readers) == 1 and name not in graph_outputs:
            readers_by_name[name] = readers_by_name.pop(copies[0], [])
            for reader in readers_by_name[name]:
                reader.redirect(name)
            worklist.append(name)
            continue
        for copy in copies:
            add_copy(graph, tensors[name], copy)
            tensors[copy] = graph.initializer[-1]
        worklist.extend(copies)
        notes.append(f"initializer {name!r} was merged with {copies}: split by name again")
    remove_nodes(graph, removed)
    return notes


def _split_statistics(graph: onnx.GraphProto) -> list[str]:
    """Give the running statistics of each batch-norm layer tensors that nothing else reads."""
    readers_by_name = readers(graph)
    layers = {
        reader.node.output[0]: _layer(reader.node)
        for value_readers in readers_by_name.values()
        for reader in value_readers
        if reader.is_statistic
    }
    notes = []
    for tensor in list(graph.initializer):
        groups: dict[Hashable, list[Reader]] = {}
        for reader in readers_by_name[tensor.name]:
            if reader.is_statistic:
                key = (layers[reader.node.output[0]], reader.index)
                groups.setdefault(key, []).append(reader)
        # The tensor itself stays with its other readers or, without any, with the first layer.
        is_weight = any(_is_weight(reader) for reader in readers_by_name[tensor.name])
        for group in list(groups.values())[0 if is_weight else 1 :]:
            statistic = STATISTICS[group[0].index]
            name = unique_name(graph, f"{group[0].node.name}.{statistic}")
            add_copy(graph, tensor, name)
            for reader in group:
                reader.redirect(name)
            notes.append(
                f"initializer {tensor.name!r} was also the {statistic} of "
                f"{[reader.node.name for reader in group]}: split, that is now {name!r}"
            )
    return notes


def _is_weight(reader: Reader) -> bool:
    """Whether this reader uses a value as a weight, not as a statistic.

    An Identity that `_split_identities` has left only hands the statistic out of the graph.
    """
    return not reader.is_statistic and reader.node.op_type != "Identity"


def _layer(node: onnx.NodeProto) -> Hashable:
    """The weights that two nodes share if they are one batch-norm layer applied twice.

    Such nodes agree in all four of scale, bias, mean and variance. Where some of the four are one
    tensor, an exporter has merged equal values, and agreement says nothing.
    """
    tensors = tuple(node.input[1:5])
    return tensors if len(set(tensors)) == len(tensors) else node.output[0]


def _split_settings(graph: onnx.GraphProto) -> list[str]:
    """Give a float that is both a setting and a weight a tensor of its own for each role."""
    readers_by_name = readers(graph)
    notes = []
    for tensor in list(graph.initializer):
        if not is_float(tensor):
            continue
        as_setting = [reader for reader in readers_by_name[tensor.name] if is_setting(reader)]
        if not as_setting or len(as_setting) == len(readers_by_name[tensor.name]):
            continue
        name = unique_name(graph, f"{tensor.name}.setting")
        add_copy(graph, tensor, name)
        for reader in as_setting:
            reader.redirect(name)
        notes.append(
            f"initializer {tensor.name!r} is a weight and a setting of "
            f"{[reader.node.name for reader in as_setting]}: split, the setting is now {name!r}"
        )
    return notes
