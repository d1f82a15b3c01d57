"""An ONNX model without the values of its weights, and with them.

A `Model` has its weights as arrays. The file that it comes from would hold them a second time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper


def without_values(proto: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """A copy of a model in which some initializers have names, shapes and dtypes alone.

    Not a copy with fields cleared: a message keeps the memory of what was in it.
    """
    copied = onnx.ModelProto()
    _copy_fields(copied, proto, but="graph")
    _copy_fields(copied.graph, proto.graph, but="initializer")
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            copied.graph.initializer.add(
                name=tensor.name, dims=tensor.dims, data_type=tensor.data_type
            )
        else:
            copied.graph.initializer.append(tensor)
    return copied


def with_values(proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """A copy of a model in which some initializers have the values of arrays."""
    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    for tensor in copied.graph.initializer:
        if tensor.name in arrays:
            tensor.CopyFrom(numpy_helper.from_array(arrays[tensor.name], tensor.name))
    return copied


def _copy_fields(to: Any, message: Any, but: str) -> None:
    """Copy what is set in a message to an empty one of its kind, but for one field."""
    for field, value in message.ListFields():
        if field.name == but:
            continue
        if hasattr(value, "extend"):
            getattr(to, field.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(to, field.name).CopyFrom(value)
        else:
            setattr(to, field.name, value)
