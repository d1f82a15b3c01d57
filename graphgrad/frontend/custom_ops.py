"""Operators of the user's own, given to `from_onnx` as functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax

from ..errors import ArgumentError, ModelError
from ..ir.callables import location_of
from ..ir.tensor import Tensor
from .converters import Converter, Node
from .onnx_graph import STANDARD_DOMAINS

CustomOps = Mapping[tuple[str, str], Callable[..., Any]]
"""Functions of (inputs, attributes), by domain and operator name."""


def custom_converters(custom_ops: CustomOps | None) -> dict[tuple[str, str], Converter]:
    """A converter for each function of the user's.

    Raises
    ------
    ArgumentError
        `custom_ops` is no mapping from (domain, operator) to functions.
    """
    if custom_ops is None:
        return {}
    if not isinstance(custom_ops, Mapping):
        raise ArgumentError(f"custom_ops: expected a dict, given a {type(custom_ops).__name__}")
    converters = {}
    for key, function in custom_ops.items():
        is_pair = isinstance(key, tuple) and len(key) == 2
        if not is_pair or not all(isinstance(part, str) for part in key) or not key[1]:
            raise ArgumentError(
                f"custom_ops: expected keys (domain, operator), such as ('my.domain', 'Swish'), "
                f"given {key!r}"
            )
        if not callable(function):
            raise ArgumentError(
                f"custom_ops[{key!r}]: expected a function of (inputs, attributes), "
                f"given a {type(function).__name__}"
            )
        domain, op_type = key
        converters["" if domain in STANDARD_DOMAINS else domain, op_type] = _converter(function)
    return converters


def _converter(function: Callable[..., Any]) -> Converter:
    """A converter that calls a user's function, and checks what it returns."""

    def convert(node: Node) -> tuple[Any, ...]:
        inputs = [
            node.tensor(index) if node.has(index) else None for index in range(len(node.inputs))
        ]
        attributes = {name: _plain(value) for name, value in node.attributes.items()}
        try:
            result = function(inputs, attributes)
        except Exception as error:
            raise ModelError(
                f"custom op {_label(function)} raised {type(error).__name__}: {error}"
            ) from error
        returned = result if isinstance(result, tuple | list) else (result,)
        outputs = tuple(_output(node, function, value) for value in returned)
        if len(outputs) != node.output_count:
            raise ModelError(
                f"custom op {_label(function)} returned {len(outputs)} values, "
                f"the node has {node.output_count} outputs"
            )
        return outputs

    return convert


def _output(node: Node, function: Callable[..., Any], value: Any) -> Tensor:
    """One value that a user's function returned, as a tensor.

    Raises
    ------
    ModelError
        It is not a tensor, nor a Relax expression of one.
    """
    tensor = None
    try:
        if isinstance(value, Tensor):
            tensor = value
        elif isinstance(value, relax.Call):  # may have no type before it is bound
            tensor = node.emitter.emit(value)
        elif isinstance(value, relax.Expr):
            tensor = node.emitter.lift(value)
    except Exception as error:  # TVM checks types when an expression is bound, with any error
        raise ModelError(
            f"custom op {_label(function)} returned an expression that is not valid Relax: {error}"
        ) from error
    if not isinstance(tensor, Tensor):
        raise ModelError(
            f"custom op {_label(function)} must return a graphgrad Tensor or a Relax expression of "
            f"a tensor for each output, it returned a {type(value).__name__}"
        )
    return tensor


def _plain(value: Any) -> Any:
    """An attribute as plain Python: text for bytes, arrays for tensors, lists."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return np.array(numpy_helper.to_array(value))
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _label(function: Callable[..., Any]) -> str:
    """A function's name, file and line, for an error."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name} ({location_of(function)})"
