"""An ONNX model without the values of its weights, and with them.

A `Model` has its weights as arrays. The file that it comes from would hold them a second time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import numpy_helper


def without_values(proto: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """A copy of a model in which some initializers have names, shapes and dtypes alone.

    Not a copy with fields cleared: a message keeps the memory of what was in it.
    """
    copied = onnx.ModelProto()
    copy_fields(proto, copied, but="graph")
    copy_fields(proto.graph, copied.graph, but="initializer")
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


def copy_fields(message: Message, copied: Message, but: str) -> None:
    """Copy what is set in a message to an empty one of its kind, but for one field."""
    for field, value in message.ListFields():
        if field.name == but:
            continue
        if isinstance(value, Message):
            getattr(copied, field.name).CopyFrom(value)
        elif isinstance(value, str | bytes | int | float):
            setattr(copied, field.name, value)
        else:  # a field that is repeated
            getattr(copied, field.name).extend(value)
