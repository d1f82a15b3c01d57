"""Loading of ONNX models, with an error that names the fault where one cannot be used."""

from __future__ import annotations

import math
import os
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import helper

from ..errors import ModelError
from .onnx_graph import STANDARD_DOMAINS
from .onnx_tensors import external_files, load_tensors
from .onnx_values import copy_fields

OLDEST_IR_VERSION = 3  # older files name no opset, so what their operators mean is not fixed
OLDEST_OPSET = 7  # before it, operators broadcast by attributes and batch norm had another meaning

INLINER_ERRORS = (RuntimeError, ValueError, onnx.checker.ValidationError)
"""What onnx's inliner raises of calls that do not fit, cycles and operator sets that disagree."""

_MOST_BYTES = 2**31 - 1  # of one message
_MOST_CHECKED_ELEMENTS = 1024  # of a tensor that ONNX's checker is given
_VERSIONS = 2**31  # of operator sets; onnx counts them in 32 bits


def load(path_or_proto: str | os.PathLike[str] | onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model given as a file or as a proto, after looking for damage.

    Raises
    ------
    ModelError
        If the argument is neither; if the file is missing, a folder, empty, truncated or not
        ONNX; if the model has no graph, no nodes or no outputs, is of an IR version before 3, or
        uses standard operators of a version before 7 or later than the newest that the installed
        onnx package knows; if a tensor is malformed, or its external data are missing or not in
        the folder of the file.
    """
    if isinstance(path_or_proto, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(path_or_proto)
        label, folder = "the ONNX model", None
    elif isinstance(path_or_proto, (str, os.PathLike)):
        path = Path(path_or_proto)
        proto = _read(path)
        label, folder = f"the ONNX file {path}", path.parent
    else:
        raise ModelError(
            "expected the path of an ONNX file or an onnx.ModelProto, "
            f"given a {type(path_or_proto).__name__}"
        )
    _refuse_empty(proto, label)
    _refuse_versions(proto, label)
    load_tensors(proto, folder, label)
    return proto


def check(proto: onnx.ModelProto) -> None:
    """Run the checker of ONNX on a model whose tensors hold the data that they should.

    Raises
    ------
    ModelError
        With the checker's message, if the model breaks the ONNX standard.
    """
    try:
        onnx.checker.check_model(_without_weights(proto))
    except (onnx.checker.ValidationError, ValueError) as error:
        raise ModelError(f"the model is not valid ONNX: {error}") from error


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inputs in the place of large initializers.

    The checker is handed a model as a message, which is as large as its weights. What it would ask
    of their data, `load` has asked.
    """
    graph = proto.graph
    large = {
        t.name: t
        for t in graph.initializer
        # `t.ByteSize()` would write the message, and `len(t.raw_data)` copy the data.
        if t.HasField("raw_data") and math.prod(t.dims) > _MOST_CHECKED_ELEMENTS
    }
    if not large or proto.ir_version < 4:  # before, initializers had to be inputs
        return proto
    light = onnx.ModelProto()
    copy_fields(proto, light, but="graph")
    copy_fields(graph, light.graph, but="initializer")
    light.graph.initializer.extend(t for t in graph.initializer if t.name not in large)
    inputs = {value.name for value in graph.input}
    light.graph.input.extend(
        helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
        for name, tensor in large.items()
        if name not in inputs
    )
    return light


def external_files_of(path: Path) -> list[Path]:
    """The files beside that of a model which hold data of its tensors.

    Raises
    ------
    ModelError
        The file is no ONNX model, or names one that is not in its folder.
    """
    return external_files(_read(path), path.parent, f"the ONNX file {path}")


def _read(path: Path) -> onnx.ModelProto:
    """The model of a file, without its external data."""
    if not path.exists():
        raise ModelError(f"there is no file {path}")
    if path.is_dir():
        raise ModelError(f"{path} is a folder: give the path of an .onnx file in it")
    if not path.is_file():  # a pipe, or a device without end
        raise ModelError(f"{path} is no file: give the path of an .onnx file")
    try:
        size = path.stat().st_size
        if size == 0:
            raise ModelError(f"the file {path} is empty")
        if size > _MOST_BYTES:
            raise ModelError(
                f"the file {path} has {size:,} bytes, and protocol buffers hold {_MOST_BYTES:,}: "
                "keep its weights in external data"
            )
        return onnx.ModelProto.FromString(path.read_bytes())
    except DecodeError as error:
        raise ModelError(f"the file {path} is not an ONNX file, or is truncated") from error
    except OSError as error:
        raise ModelError(f"the file {path} cannot be read: {error}") from error


def _refuse_empty(proto: onnx.ModelProto, label: str) -> None:
    if not proto.HasField("graph"):
        raise ModelError(f"{label} has no graph: it is not an ONNX model, or is truncated")
    if not proto.graph.output:
        raise ModelError(f"{label} has no outputs")
    if not proto.graph.node:
        raise ModelError(f"{label} has no nodes")


def _refuse_versions(proto: onnx.ModelProto, label: str) -> None:
    if proto.ir_version < OLDEST_IR_VERSION:
        raise ModelError(
            f"{label} has IR version {proto.ir_version}; {OLDEST_IR_VERSION} or later is needed: "
            "convert it with onnx.version_converter, or export it again"
        )
    newest = onnx.defs.onnx_opset_version()
    for opset in proto.opset_import:
        if not 0 <= opset.version < _VERSIONS:
            raise ModelError(
                f"{label} uses version {opset.version} of {opset.domain!r}, which is no version"
            )
        # Sets of other domains may have any version: their operators are looked up by name alone.
        if opset.domain not in STANDARD_DOMAINS or OLDEST_OPSET <= opset.version <= newest:
            continue
        hint = (
            f"install an onnx package that knows it, or export with opset {newest}"
            if opset.version > newest
            else "convert it with onnx.version_converter, or export it again"
        )
        raise ModelError(
            f"{label} uses opset {opset.version}; {OLDEST_OPSET} to {newest} are served: {hint}"
        )
