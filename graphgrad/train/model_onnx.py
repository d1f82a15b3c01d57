"""`to_onnx`: a model with its values as an ONNX file, for inference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import relax

from ..files import check_path
from ..frontend.model import Model
from ..frontend.onnx_export import checked_values, write_inference, write_proto
from ..frontend.onnx_graph import readers
from ..frontend.writer import model_of_program
from .forward import inline_model
from .operators import in_operators


def to_onnx(
    model: Model,
    params: Mapping[str, Any],
    state: Mapping[str, Any] | None,
    path: str | os.PathLike[str],
) -> None:
    """Write a model with the given values, in inference form, to an ONNX file.

    Of a model that came from ONNX, the graph and all names are those of its (repaired) ONNX model.
    Where some outputs come from loss operators and others do not, the losses are left out, and so
    are the inputs, such as labels, that only they read. Of any other model, the graph has operators
    of the default domain only, and inputs, parameters and outputs have the model's names.

    The file appears whole or not at all, and replaces one of the same name. A model of more than 2
    GB keeps its weights in a second file beside it, whose name is that of the file, a digest of the
    weights, and ``.data``; no name ever shows those of another model. That of a model which is
    replaced goes.

    Parameters
    ----------
    model : Model
    params, state : mapping of str to array
        A value for each of ``model.params`` and ``model.state``, of the same shape and dtype.
    path : path

    Raises
    ------
    ModelError
        Ops of a model that did not come from ONNX are not written; lists all of them, and why.
    InputError
        If names, shapes or dtypes are not those of the model.
    ArgumentError
        If the folder of `path` does not exist, or `path` is a folder.
    OutputError
        If the file cannot be written; one of the same name is untouched.
    """
    path = check_path(path)
    if model.skeleton is not None:
        write_inference(model, params, state, path)
    else:
        write_proto(_inference_proto(model, checked_values(model, params, state)), path)


def _inference_proto(model: Model, values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    program = inline_model(model, False).program
    outputs = relax.Tuple(list(program.result.fields[0].fields))
    program = in_operators(replace(program, result=outputs))
    names = [*model.inputs, *model.params, *model.state]
    proto = model_of_program(program, names, model.outputs, values)
    # Weights are constants here, and those of the training form are gone.
    kept_inputs = list(proto.graph.input)[: len(model.inputs)]
    read = readers(proto.graph).keys()
    weights = [tensor for tensor in proto.graph.initializer if tensor.name in read]
    body = helper.make_graph(
        proto.graph.node, proto.graph.name, kept_inputs, proto.graph.output, weights
    )
    proto.graph.CopyFrom(body)
    return proto
