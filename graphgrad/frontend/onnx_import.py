"""Import of ONNX files."""

from __future__ import annotations

import os
from collections.abc import Mapping

import onnx
from onnx import numpy_helper

from ..errors import ArgumentError
from .model import Model
from .onnx_importer import import_graph, is_supported
from .onnx_repair import repair
from .onnx_shapes import Shape, input_types
from .split_initialisers import roles


def from_onnx(
    path_or_proto: str | os.PathLike[str] | onnx.ModelProto,
    *,
    shapes: Mapping[str, Shape] | None = None,
    custom_ops: None = None,
) -> Model:
    """Read an ONNX model.

    Float initialisers become parameters, the running statistics of batch norms become state, and
    integer and boolean initialisers, which never train, become constants of the module. What was
    repaired on the way is told in ``Model.notes``.

    Parameters
    ----------
    path_or_proto : path or onnx.ModelProto
    shapes : mapping of str to sequence of int or None, optional
        Shape of some inputs, e.g. ``{"x": (32, 3, 224, 224)}``, to make symbolic dimensions fixed;
        ``None`` in a shape leaves the dimension as it is.
    custom_ops : None
        Not served yet.

    Raises
    ------
    ModelError
        If the file is missing or damaged, breaks the ONNX standard, or has operators that are not
        supported: all of these are listed.
    InputError
        If `shapes` does not fit the model's inputs.
    ArgumentError
        If `custom_ops` is given.
    """
    if custom_ops is not None:
        raise ArgumentError("custom_ops is not served yet: leave it out")
    proto, notes = repair(path_or_proto, is_supported)
    types = input_types(proto.graph, shapes)
    params, state = roles(proto.graph)
    module = import_graph(proto, types, [*params, *state])
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    return Model(
        module,
        {name: arrays[name] for name in params},
        {name: arrays[name] for name in state},
        outputs=[output.name for output in proto.graph.output],
        notes=notes,
        proto=proto,
    )
