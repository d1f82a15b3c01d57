"""Export of a trained model to an ONNX file, in inference form."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.external_data_helper import set_external_data

from ..files import write_file, writing
from ..runtime.files import UNFINISHED, lock, sync_folder, unfinished, unlock
from .arrays import checked_arrays
from .model import Model
from .onnx_graph import attribute, opset, output_names, readers, subgraphs
from .onnx_load import check
from .onnx_prune import drop_losses
from .onnx_values import with_values

MAX_FILE_BYTES = 2**31 - 1  # what a protobuf message may hold
_MAX_INLINE_BYTES = 1024  # bytes; smaller ones stay in the model's own file
_PAGE_BYTES = 4096  # at whole pages of a file of weights, a runtime can map them
_DIGITS = 16  # of the digest in the name of a file of weights


def write_inference(
    model: Model, params: Mapping[str, Any], state: Mapping[str, Any] | None, path: Path
) -> None:
    """Write a model that came from ONNX, with other values, see `train.model_onnx.to_onnx`."""
    proto = with_values(model.skeleton, checked_values(model, params, state))
    drop_losses(proto.graph)
    # Of the whole graph: an inner graph may read what a batch norm outside of it gives.
    read_names = readers(proto.graph).keys() | output_names(proto.graph)
    _to_inference(proto.graph, opset(proto), read_names)
    _remove_unread_constants(proto.graph)
    write_proto(proto, path)


def checked_values(
    model: Model, params: Mapping[str, Any], state: Mapping[str, Any] | None
) -> dict[str, np.ndarray]:
    """The values of a model's parameters and statistics.

    Raises
    ------
    InputError
        Names, shapes or dtypes are not those of the model.
    """
    arrays = checked_arrays("parameter", params, model.params)
    return arrays | checked_arrays("statistic", state, model.state)


def write_proto(proto: onnx.ModelProto, path: Path) -> None:
    """Check a model, and write it, its weights beside it if they are more than one file holds."""
    is_large = proto.ByteSize() > MAX_FILE_BYTES
    if not is_large:
        check(proto)  # which takes no model of more than 2 GB
    with _alone(path):
        weights = _write_weights(proto, path) if is_large else None
        write_file(path, proto.SerializeToString())
        _remove_weights(path, but=weights)


def _to_inference(graph: onnx.GraphProto, version: int, read_names: set[str]) -> None:
    """Bring batch norms and dropouts of a graph, and of the graphs in it, to inference form."""
    nodes = []
    for node in graph.node:
        nodes.append(node)
        for inner in subgraphs(node):
            _to_inference(inner, version, read_names)
        if node.op_type == "BatchNormalization":
            nodes += _batch_norm_to_inference(node, read_names)
        elif node.op_type == "Dropout" and version >= 12:
            del node.input[2:]  # training_mode, false where it is left out
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _remove_unread_constants(graph: onnx.GraphProto) -> None:
    """Remove Constant nodes that nobody reads any more, such as a dropout's training_mode."""
    read_names = readers(graph).keys() | output_names(graph)
    for position in reversed(range(len(graph.node))):
        node = graph.node[position]
        if node.op_type == "Constant" and node.output[0] not in read_names:
            del graph.node[position]


def _batch_norm_to_inference(node: onnx.NodeProto, read_names: set[str]) -> list[onnx.NodeProto]:
    """Bring a batch norm to inference form, in place.

    Its further outputs go: the updated statistics, which in inference form are the old ones. Where
    something reads them, the returned Identity nodes give it the old ones by the same names.
    """
    if attribute(node, "training_mode", 0):
        _set_attribute(node, "training_mode", 0)
    statistics = zip(node.input[3:5], node.output[1:3], strict=False)
    copies = [
        helper.make_node("Identity", [old], [new], name=f"{node.name}.{new}")
        for old, new in statistics
        if new in read_names
    ]
    del node.output[1:]
    return copies


def _set_attribute(node: onnx.NodeProto, name: str, value: int) -> None:
    others = [node_attribute for node_attribute in node.attribute if node_attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*others, helper.make_attribute(name, value)])


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While inside, nobody else writes models to the folder of a path: two files must agree."""
    with writing(path):
        descriptor = lock(path.parent, wait=True)
    try:
        yield
    finally:
        unlock(descriptor)


def _write_weights(proto: onnx.ModelProto, path: Path) -> Path:
    """Move the weights of a model that is to be written to a path to a file of their own.

    The model's file is written after it, and names it: until then the old model is whole, and
    from then on the new one.
    """
    large = [t for t in _initializers(proto.graph) if len(t.raw_data) > _MAX_INLINE_BYTES]
    offsets = []
    digest = hashlib.sha256()
    with writing(path), unfinished(path, UNFINISHED) as new_file:
        with open(new_file, "wb") as file:
            for tensor in large:
                file.write(bytes(-file.tell() % _PAGE_BYTES))
                offsets.append(file.tell())
                file.write(tensor.raw_data)
                digest.update(f"{len(tensor.raw_data)}\n".encode())
                digest.update(tensor.raw_data)
            file.flush()
            os.fsync(file.fileno())
        weights = path.with_name(f"{path.name}.{digest.hexdigest()[:_DIGITS]}.data")
        os.replace(new_file, weights)
        sync_folder(weights.parent)
    for tensor, offset in zip(large, offsets, strict=True):
        set_external_data(tensor, weights.name, offset, len(tensor.raw_data))
        tensor.ClearField("raw_data")
    return weights


def _initializers(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The initializers of a graph, and of the graphs in it."""
    yield from graph.initializer
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _initializers(inner)


def _remove_weights(path: Path, but: Path | None) -> None:
    """Remove weights of models that were written to a path, but for those of the one there."""
    digest = "[0-9a-f]" * _DIGITS
    for weights in path.parent.glob(f"{glob.escape(path.name)}.{digest}.data"):
        if weights != but:
            with suppress(OSError):  # the next one removes it
                weights.unlink()
