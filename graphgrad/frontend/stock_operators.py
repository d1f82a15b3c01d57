"""Calls of TVM's own translations of ONNX operators, one node at a time, with corrections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend as stock

from ..errors import ModelError
from ..ir.tensor import is_float
from ..runtime.json_form import MOST_AXES
from ..tvm_fixes.hooks import onnx_converters
from .onnx_graph import STANDARD_DOMAINS

# Operators of another domain that TVM's importer knows; it looks at names alone.
_CONTRIBUTED = {
    "com.microsoft": frozenset(
        {
            "Attention",
            "BiasGelu",
            "EmbedLayerNormalization",
            "FastGelu",
            "Gelu",
            "SkipLayerNormalization",
        }
    )
}

# Inputs, by operator and index, that a translation takes as a Relax shape; any other is a tensor.
SHAPE_INPUTS = frozenset({("ConstantOfShape", 0), ("Expand", 1), ("Reshape", 1), ("Resize", 3)})

# Operators whose translations accept inputs of shape type. For all others a shape becomes a tensor.
_TAKES_SHAPES = frozenset(
    {
        "Cast",
        "CastLike",
        "Concat",
        "ConstantOfShape",
        "Equal",
        "Expand",
        "Gather",
        "Reshape",
        "Resize",
        "Shape",
        "Slice",
        "Squeeze",
        "Where",
    }
)

# Operators whose result may be a tuple and yet is one output, a sequence.
_SEQUENCES = frozenset(
    {
        "ConcatFromSequence",
        "Optional",
        "OptionalGetElement",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SplitToSequence",
    }
)


_AXES = ("axes", "axis", "perm")
"""Attributes that are axes."""


def is_translated(domain: str, op_type: str) -> bool:
    """Whether TVM's importer has a translation of an operator."""
    if domain in _CONTRIBUTED:
        return op_type in _CONTRIBUTED[domain] and op_type in _converters()
    return domain in STANDARD_DOMAINS and op_type in _converters()


def translate(
    builder: relax.BlockBuilder,
    node: onnx.NodeProto,
    inputs: Sequence[relax.Expr | None],
    attributes: Mapping[str, Any],
    opset: int,
) -> list[relax.Expr]:
    """The values of a node's outputs.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Inside a block.
    node : onnx.NodeProto
    inputs : sequence of relax expressions
        None where an input is left out.
    attributes : mapping
        As `attributes_of` reads them.
    opset : int

    Raises
    ------
    Exception
        Of any type, where TVM's translation meets something that it does not know.
    """
    output_count = _output_count(node)
    # TVM's importer hands its translations the name and the number of outputs among the attributes.
    node_settings = {"name": node.name, "num_outputs": output_count}
    node_attributes: dict[str, Any] = {**attributes, "tvm_custom": node_settings}
    if node.op_type == "Gemm":
        _check_factors(inputs[0], node_attributes)
    if node.op_type == "BatchNormalization":
        node_attributes = _corrected_batch_norm(node_attributes, opset)
    operands = stock.onnx_input()
    for value in inputs:
        operands.append(_as_tensor(builder, value) if node.op_type not in _TAKES_SHAPES else value)
    if node.op_type == "Unique" and "axis" not in attributes:
        # The numbers of all elements come in the shape of the input, where ONNX wants one axis.
        operands[0] = builder.emit(relax.op.flatten(operands[0]))
    convert = _converters()[node.op_type].get_converter(opset)
    # The translations fold any parameter that they find in the last argument into a constant.
    result = convert(builder, operands, node_attributes, [{}, {}])
    if isinstance(result, relax.Expr):
        result = builder.normalize(result)
    outputs = [result] if node.op_type in _SEQUENCES else _unpacked(builder, result)
    if len(outputs) < output_count:
        raise ModelError(f"only {len(outputs)} of its {output_count} outputs are served")
    return outputs


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes: lists as tuples, and each float as the shortest equal decimal.

    A file stores 0.9 as the float32 nearest to it, which is 2e-8 off. The shortest decimal that
    rounds to the same float32 makes no difference in float32 arithmetic, and in float64 it is most
    likely the number that the author wrote.

    Raises
    ------
    ModelError
        An axis is none.
    """
    for attribute in node.attribute:
        axes = [*attribute.ints, attribute.i] if attribute.name in _AXES else []
        # TVM cuts an axis off to 32 bits, which may leave one that exists.
        if not all(-MOST_AXES <= axis < MOST_AXES for axis in axes):
            raise ModelError(f"its {attribute.name} {axes[:-1] or axes} names an axis that is none")
    return {
        attribute.name: _meant(onnx.helper.get_attribute_value(attribute))
        for attribute in node.attribute
    }


def dropout_trains(inputs: Sequence[relax.Expr | None]) -> bool:
    """Whether a Dropout node is in training form.

    Raises
    ------
    ModelError
        Its ratio or its form is not constant.
    """
    settings = dict(zip(("data", "ratio", "training_mode"), inputs, strict=False))
    del settings["data"]
    for name, value in settings.items():
        if value is not None and not isinstance(value, GenericConst):
            raise ModelError(f"its {name} is computed or an input: make it a constant")
    mode = settings.get("training_mode")
    return mode is not None and bool(mode.value.numpy())


@cache
def _converters() -> Mapping[str, Any]:
    """TVM's translations, by name of the operator."""
    return onnx_converters()


def _output_count(node: onnx.NodeProto) -> int:
    """How many outputs of a node the translation must give.

    Before opset 14 a batch norm in training form has two more than three, "saved" statistics for
    a backward pass that is not ours.
    """
    if node.op_type != "BatchNormalization" or len(node.output) <= 3:
        return len(node.output)
    if any(node.output[3:]):
        raise ModelError("its saved_mean and saved_var are read: export with opset 14 or later")
    return 3


def _as_tensor(builder: relax.BlockBuilder, value: relax.Expr | None) -> relax.Expr | None:
    """A shape as a tensor; any other value, or None, as it is."""
    if value is not None and isinstance(value.ty, relax.ShapeType):
        return builder.normalize(relax.op.shape_to_tensor(value))
    return value


def _unpacked(builder: relax.BlockBuilder, result: relax.Expr) -> list[relax.Expr]:
    """The outputs of a node, which TVM returns as one expression."""
    if isinstance(result, relax.Tuple):
        return list(result.fields)
    if not isinstance(result.ty, relax.TupleType):
        return [result]
    return [
        builder.emit(relax.TupleGetItem(result, index)) for index in range(len(result.ty.fields))
    ]


def _check_factors(a: relax.Expr | None, attributes: Mapping[str, Any]) -> None:
    """Refuse factors of a product of integers that are no integers: they would be cut off.

    Raises
    ------
    ModelError
    """
    if a is None or is_float(str(a.ty.dtype)):
        return
    for name in ("alpha", "beta"):
        factor = attributes.get(name, 1.0)
        if not float(factor).is_integer() or (factor < 0 and str(a.ty.dtype).startswith("uint")):
            raise ModelError(f"its {name}, {factor}, is not a value of its dtype, {a.ty.dtype}")


def _corrected_batch_norm(attributes: dict[str, Any], opset: int) -> dict[str, Any]:
    """Turn ONNX's meaning of momentum and of the number of outputs into that of Relax.

    ONNX keeps the share ``momentum`` of the old statistics, Relax the share ``1 - momentum``.
    Before opset 14 a node is in training form if it has more than one output.
    """
    if not attributes.get("spatial", 1):
        raise ModelError("spatial=0 is not supported: export with opset 9 or later")
    is_training = bool(attributes.get("training_mode", 0))
    if opset < 14:
        is_training = attributes["tvm_custom"]["num_outputs"] > 1
    momentum = 1.0 - attributes.get("momentum", 0.9)
    return {**attributes, "momentum": momentum, "training_mode": int(is_training)}


def _meant(value: Any) -> Any:
    """An attribute's value with its floats as the shortest decimals; see `attributes_of`."""
    if isinstance(value, float):
        return float(str(np.float32(value)))
    if isinstance(value, list | tuple):
        return tuple(_meant(item) for item in value)
    return value
