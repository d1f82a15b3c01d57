"""The tensors of an ONNX model, checked before anything reads them, with their external data.

Afterwards every tensor has a dtype that ONNX knows, extents that are sizes, and as much data as
both say, so that its conversion to an array cannot fail, and takes memory in proportion to the
files. External data come from the folder of the file alone: a location may not leave it.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import onnx
from onnx import TensorProto, helper

from ..errors import ModelError
from ..runtime.files import open_file
from ..runtime.json_form import MOST_AXES
from .onnx_graph import subgraphs

_LARGEST_BYTES = 2**63 - 1

MOST_EXPANDED_BYTES = 1 << 28
"""What tensors that a file only describes may take up: a few bytes could ask for terabytes."""

_MOST_READS = 8
"""How often over all the bytes of one external file may be read: tensors may share some."""

_PACKED_BITS = {
    "UINT4": 4,
    "INT4": 4,
    "FLOAT4E2M1": 4,
    "UINT2": 2,
    "INT2": 2,
    "FLOAT6E2M3": 6,
    "FLOAT6E3M2": 6,
}
"""The bits of an element where that is no whole number of bytes."""

_NUMBERS_PER_ELEMENT = {TensorProto.COMPLEX64: 2, TensorProto.COMPLEX128: 2}


def load_tensors(proto: onnx.ModelProto, folder: Path | None, label: str) -> None:
    """Check all tensors of a model, and read those whose data are in files of their own.

    Parameters
    ----------
    proto : onnx.ModelProto
        Changed in place: no tensor is external afterwards.
    folder : Path or None
        The folder of the file that the model was read from; None if it was given in memory.
    label : str
        Of the model, for errors.

    Raises
    ------
    ModelError
        Names the tensor, and what is wrong with it.
    """
    _check_texts(proto, label)
    external = _ExternalData(folder)
    expanded_bytes = 0
    graphs = [proto.graph, *proto.functions]
    for tensor in (tensor for graph in graphs for tensor in _dense_tensors(graph)):
        name = f"{label}: tensor {tensor.name!r}"
        byte_count = _checked_size(tensor, name)
        if tensor.data_location == TensorProto.EXTERNAL:
            external.read(tensor, byte_count, name)
        else:
            _check_data(tensor, byte_count, name)
    for sparse in (sparse for graph in graphs for sparse in _sparse_tensors(graph)):
        name = f"{label}: sparse tensor {sparse.values.name!r}"
        expanded_bytes += _size_in_bytes(sparse.values.data_type, sparse.dims, name)
        if expanded_bytes > MOST_EXPANDED_BYTES:
            raise ModelError(
                f"{name} and those before it take {expanded_bytes:,} bytes when they are made "
                f"dense, as they must be, and {MOST_EXPANDED_BYTES:,} are served: store it dense"
            )


def check_data_type(data_type: int, name: str) -> None:
    """Raise a `ModelError` about `name` unless ONNX knows a type of elements."""
    if data_type not in TensorProto.DataType.values() or data_type == TensorProto.UNDEFINED:
        raise ModelError(f"{name} has the data type {data_type}, which ONNX does not know")


class _ExternalData:
    """Reads the data of tensors from files, which it keeps the account of.

    Parameters
    ----------
    folder : Path or None
        As of `load_tensors`.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._bytes_read: Counter[Path] = Counter()

    def read(self, tensor: TensorProto, byte_count: int, name: str) -> None:
        """Give a tensor the data that it keeps elsewhere, of a size that its type says."""
        if self._folder is None:
            raise ModelError(
                f"{name} keeps its values in external data that are not loaded: give the path of "
                "the model's file"
            )
        if tensor.data_type == TensorProto.STRING:
            raise ModelError(f"{name} keeps strings in external data, which ONNX has no form for")
        entries = {entry.key: entry.value for entry in tensor.external_data}
        path = _external_path(self._folder, entries.get("location", ""), name)
        offset = _natural(entries.get("offset", "0"), f"{name}: the offset of its external data")
        if "length" in entries:
            length = _natural(entries["length"], f"{name}: the length of its external data")
            if length != byte_count:
                raise ModelError(
                    f"{name} takes {byte_count} bytes by its type, but its external data are said "
                    f"to have {length}"
                )
        try:
            tensor.raw_data = self._bytes(path, offset, byte_count, name)
        except OSError as error:
            raise ModelError(
                f"{name}: its external data are no file, or cannot be read: {error}"
            ) from error
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]

    def _bytes(self, path: Path, offset: int, byte_count: int, name: str) -> bytes:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if offset + byte_count > size:
                raise ModelError(
                    f"{name}: its external data end at byte {offset + byte_count}, but {path} has "
                    f"{size}: it is truncated, or belongs to another model"
                )
            self._bytes_read[path] += byte_count
            if self._bytes_read[path] > _MOST_READS * size:
                raise ModelError(
                    f"{name} and those before it read the bytes of {path} more than {_MOST_READS} "
                    "times over: let nodes share a tensor"
                )
            file.seek(offset)
            return file.read(byte_count)


def external_files(proto: onnx.ModelProto, folder: Path, label: str) -> list[Path]:
    """The files that hold data of a model's tensors, in the order of their locations.

    Raises
    ------
    ModelError
        One is not in the folder of the model.
    """
    _check_texts(proto, label)
    locations = {
        entry.value: tensor.name
        for graph in (proto.graph, *proto.functions)
        for tensor in _dense_tensors(graph)
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return [
        _external_path(folder, location, f"{label}: tensor {name!r}")
        for location, name in sorted(locations.items())
    ]


def _external_path(folder: Path, location: str, name: str) -> Path:
    """The file of a location, which is inside the folder, links followed."""
    relative = PurePosixPath(location.replace("\\", "/"))
    is_inside = location and "\0" not in location and not relative.is_absolute()
    if is_inside and ".." not in relative.parts:
        path = Path(os.path.realpath(folder / relative))
        if path.is_relative_to(os.path.realpath(folder)):
            return path
    raise ModelError(
        f"{name} keeps its values at {location[:200]!r}, which is no file in the folder of the "
        "model: external data are read from there alone"
    )


def _natural(text: str, name: str) -> int:
    """The number that a text says."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ModelError(f"{name} is {text[:50]!r}, which is no whole number")
    return int(text)


def _checked_size(tensor: TensorProto, name: str) -> int:
    """The bytes of a tensor's elements, packed as ONNX does, after checking that it has a type."""
    if tensor.HasField("segment"):
        raise ModelError(f"{name} is a segment of another one, which is not served")
    return _size_in_bytes(tensor.data_type, tensor.dims, name)


def _size_in_bytes(data_type: int, dims: Iterable[int], name: str) -> int:
    extents = list(dims)
    check_data_type(data_type, name)
    if len(extents) > MOST_AXES:
        raise ModelError(f"{name} has {len(extents)} axes; {MOST_AXES} are served")
    byte_count = -(-math.prod(extents) * _bits(data_type) // 8)
    # Without the zeros: numpy multiplies the others even if the tensor is empty.
    largest = math.prod(extent or 1 for extent in extents) * _bits(data_type)
    if min(extents, default=0) < 0 or largest > _LARGEST_BYTES:
        raise ModelError(f"{name} has the extents {extents}, which are no size")
    return byte_count


def _bits(data_type: int) -> int:
    """The bits that an element takes in a file; of strings, which vary, the number is not used."""
    if data_type == TensorProto.STRING:
        return 8
    packed = _PACKED_BITS.get(TensorProto.DataType.Name(data_type))
    return packed or 8 * helper.tensor_dtype_to_np_dtype(data_type).itemsize


def _check_data(tensor: TensorProto, byte_count: int, name: str) -> None:
    """Raise unless a tensor holds as much as its type says."""
    if tensor.data_type == TensorProto.STRING:
        _check_strings(tensor, name)
        return
    if tensor.HasField("raw_data"):
        expected, present, unit = byte_count, len(tensor.raw_data), "bytes"
    else:
        field = helper.tensor_dtype_to_field(tensor.data_type)
        packed = TensorProto.DataType.Name(tensor.data_type) in _PACKED_BITS
        count = math.prod(tensor.dims) * _NUMBERS_PER_ELEMENT.get(tensor.data_type, 1)
        # Elements of less than a byte come packed, one byte to a number.
        expected = byte_count if packed else count
        present, unit = len(getattr(tensor, field)), f"numbers in {field}"
    if present != expected:
        raise ModelError(
            f"{name} of shape {list(tensor.dims)} and data type "
            f"{TensorProto.DataType.Name(tensor.data_type)} needs {expected} {unit}, but has "
            f"{present}: the file is damaged, or was written wrongly"
        )


def _check_strings(tensor: TensorProto, name: str) -> None:
    if len(tensor.string_data) != math.prod(tensor.dims):
        raise ModelError(
            f"{name} of shape {list(tensor.dims)} has {len(tensor.string_data)} strings"
        )
    try:
        for text in tensor.string_data:
            text.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{name} holds what is no text: {error}") from error


def _check_texts(proto: onnx.ModelProto, label: str) -> None:
    """Raise unless names are text, and attributes have types, and values in all but functions."""
    for opset in proto.opset_import:
        _check_text(opset.domain, label)
    for function in proto.functions:
        names = [function.name, function.domain, *function.input, *function.output]
        for name in (*names, *function.attribute):
            _check_text(name, label)
        _check_nodes(function, label, may_refer=True)
    _check_nodes(proto.graph, label, may_refer=False)


def _check_nodes(
    graph: onnx.GraphProto | onnx.FunctionProto, label: str, *, may_refer: bool
) -> None:
    """Check the names and attributes of a graph, and of the graphs inside it."""
    if isinstance(graph, onnx.GraphProto):
        for value in (*graph.input, *graph.output):
            for dim in value.type.tensor_type.shape.dim:
                _check_text(dim.dim_param, label)
            _check_text(value.name, label)
        for tensor in graph.initializer:
            _check_text(tensor.name, label)
        for sparse in graph.sparse_initializer:
            _check_text(sparse.values.name, label)
    for node in graph.node:
        for name in (node.name, node.op_type, node.domain, *node.input, *node.output):
            _check_text(name, label)
        for attribute in node.attribute:
            where = f"{label}: attribute {attribute.name!r} of node {node.name!r} ({node.op_type})"
            _check_text(attribute.name, label)
            if attribute.type == onnx.AttributeProto.UNDEFINED:
                raise ModelError(f"{where} has no type that ONNX knows")
            if attribute.ref_attr_name and not may_refer:
                raise ModelError(f"{where} is that of a function, but stands in none")
        for inner in subgraphs(node):
            _check_nodes(inner, label, may_refer=may_refer)


def _check_text(name: str | bytes, label: str) -> None:
    """Raise unless a name is text; protocol buffers give bytes where it is not."""
    if not isinstance(name, str):
        raise ModelError(f"{label}: the name {name!r} is no UTF-8: the file is damaged")


def _dense_tensors(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[TensorProto]:
    """Yield the tensors of a graph or function, with those that sparse ones consist of."""
    if isinstance(graph, onnx.GraphProto):
        yield from graph.initializer
    for sparse in _own_sparse_tensors(graph):
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for inner in subgraphs(node):
            yield from _dense_tensors(inner)


def _sparse_tensors(
    graph: onnx.GraphProto | onnx.FunctionProto,
) -> Iterator[onnx.SparseTensorProto]:
    """Yield the sparse tensors of a graph or function, and of the graphs inside it."""
    yield from _own_sparse_tensors(graph)
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _sparse_tensors(inner)


def _own_sparse_tensors(
    graph: onnx.GraphProto | onnx.FunctionProto,
) -> Iterator[onnx.SparseTensorProto]:
    if isinstance(graph, onnx.GraphProto):
        yield from graph.sparse_initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor"):
                yield attribute.sparse_tensor
            yield from attribute.sparse_tensors
