"""ONNX files in float64, for oracles: all floats but those that an operator takes in float32."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_DTYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "stash_type", "softmax_precision")


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model in float64."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen(wide.graph, {used.domain: used.version for used in model.opset_import})
    return wide


def make_inputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """A copy of a model in which the initializers of some names are inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    stored = {tensor.name: tensor for tensor in copy.graph.initializer}
    for name in names:
        tensor = stored[name]
        copy.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
        copy.graph.initializer.remove(tensor)
    return copy


def _widen(graph: onnx.GraphProto, opsets: dict[str, int]) -> None:
    kept = {name for node in graph.node for name in _in_float32(node, opsets)}
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if value.name not in kept and value.type.tensor_type.elem_type in _FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in graph.initializer:
        if tensor.name not in kept:
            _widen_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "value_float" and node.op_type == "Constant":
                array = np.array(attribute.f, "float64")
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))
            elif attribute.HasField("t"):
                _widen_tensor(attribute.t)
            elif attribute.HasField("g"):
                _widen(attribute.g, opsets)
            elif attribute.name in _DTYPE_ATTRIBUTES and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE


def _in_float32(node: onnx.NodeProto, opsets: dict[str, int]) -> list[str]:
    """The inputs of a node that the operator does not take in float64."""
    try:
        schema = defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    except defs.SchemaError:
        return []
    formals = zip(node.input, schema.inputs, strict=False)
    return [name for name, formal in formals if "tensor(double)" not in formal.types]


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _FLOATS:
        array = numpy_helper.to_array(tensor).astype("float64")
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
