"""The types of an ONNX graph's inputs, with some dimensions pinned by the user."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper
from tvm import relax, tirx
from tvm.relax.frontend.onnx import onnx_frontend as stock

from ..errors import InputError, ModelError
from .onnx_tensors import check_data_type

Shape = Sequence[int | None]

_LARGEST_EXTENT = 2**31 - 1


def input_types(
    graph: onnx.GraphProto, shapes: Mapping[str, Shape] | None
) -> dict[str, relax.TensorType]:
    """The Relax type of each input of a repaired graph.

    A dimension with a name is the same symbolic variable wherever the name occurs; one without a
    name is a variable of its own.

    Parameters
    ----------
    graph : onnx.GraphProto
    shapes : mapping of str to sequence of int or None, optional
        Shapes that pin symbolic dimensions; ``None`` in a shape leaves the dimension as it is.

    Raises
    ------
    InputError
        If `shapes` names an unknown input, has a wrong rank, is not made of whole numbers, or
        contradicts the file or itself.
    ModelError
        If an input is not a tensor of numbers.
    """
    shapes = {} if shapes is None else shapes
    names = [value.name for value in graph.input]
    if not isinstance(shapes, Mapping):
        raise InputError(f"shapes: expected a dict, given a {type(shapes).__name__}")
    unknown = [name for name in shapes if name not in names]
    if unknown:
        raise InputError(f"shapes: the model has no inputs {unknown}; its inputs are {names}")
    pinned = _pinned_symbols(graph, shapes)
    # Shared by all inputs: a name is one dimension wherever it occurs.
    symbols: dict[str, tirx.Var | int] = dict(pinned)
    dimension_names = {
        dimension.dim_param
        for graph_input in graph.input
        for dimension in graph_input.type.tensor_type.shape.dim
    }
    types = {}
    for value in graph.input:
        tensor = value.type.tensor_type
        dtype = _dtype(value)
        given_shape = shapes.get(value.name)
        if not tensor.HasField("shape"):
            types[value.name] = _unranked(given_shape, dtype)
            continue
        dims = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.dim_param:
                dims.append(_symbolic(dim.dim_param, symbols, dimension_names))
            elif dim.HasField("dim_value"):
                dims.append(_extent(value.name, dim.dim_value))
            elif given_shape is not None and given_shape[axis] is not None:
                dims.append(given_shape[axis])
            else:
                dims.append(tirx.Var(f"{value.name}_d{axis}", "int64"))
        types[value.name] = relax.TensorType(dims, dtype)
    return types


def _pinned_symbols(graph: onnx.GraphProto, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """The value that `shapes` gives to each named dimension, after checking all of them."""
    pinned: dict[str, int] = {}
    for value in graph.input:
        if value.name not in shapes:
            continue
        given_shape = shapes[value.name]
        check_sizes(value.name, given_shape)
        if not value.type.tensor_type.HasField("shape"):
            continue
        dims = value.type.tensor_type.shape.dim
        if len(given_shape) != len(dims):
            raise InputError(
                f"shapes: input {value.name!r} has {len(dims)} dimensions {_text(value)}, "
                f"given {tuple(given_shape)}"
            )
        for dim, size in zip(dims, given_shape, strict=True):
            if size is None:
                continue
            fixed_size = pinned.setdefault(dim.dim_param, size) if dim.dim_param else dim.dim_value
            if (dim.dim_param or dim.HasField("dim_value")) and fixed_size != size:
                raise InputError(
                    f"shapes: input {value.name!r} is {_text(value)}, given {tuple(given_shape)}: "
                    f"{dim.dim_param or 'a dimension'} is {fixed_size} and cannot be {size} as well"
                )
    return pinned


def check_sizes(name: str, shape: Shape) -> None:
    """Raise an InputError unless a shape given for an input is made of whole numbers and None."""
    is_shape = isinstance(shape, Sequence) and not isinstance(shape, str)
    if not is_shape or not all(
        size is None or (isinstance(size, int | np.integer) and size >= 0) for size in shape
    ):
        raise InputError(f"shapes: input {name!r}: expected whole numbers, given {shape!r}")


def _symbolic(
    text: str, symbols: dict[str, tirx.Var | int], dimension_names: set[str]
) -> tirx.Var | tirx.Expr | int:
    """The variable or pinned size of a dimension's name.

    A name such as ``2*N``, whose operands are names of other dimensions, is their expression.
    """
    operands = [
        operand for operand in re.split(r"[-+*/ ]+", text) if operand and not operand.isdigit()
    ]
    # An operand that is no dimension's own name means that the text is a name with a dash or slash.
    if (
        text not in symbols
        and operands != [text]
        and all(operand in dimension_names for operand in operands)
    ):
        for operand in operands:
            symbols.setdefault(operand, tirx.Var(operand, "int64"))
        return stock.parse_shape_name(text, symbols)
    return symbols.setdefault(text, tirx.Var(text, "int64"))


def _unranked(given_shape: Shape | None, dtype: str) -> relax.TensorType:
    """The type of an input of which the file does not even give the rank."""
    if given_shape is None:
        return relax.TensorType(None, dtype)
    return relax.TensorType(
        [
            tirx.Var(f"d{axis}", "int64") if size is None else size
            for axis, size in enumerate(given_shape)
        ],
        dtype,
    )


def _extent(name: str, size: int) -> int:
    """An extent that the file gives an input, which is a size that kernels can count to."""
    if not 0 <= size <= _LARGEST_EXTENT:
        raise ModelError(
            f"input {name!r} has the extent {size}, which is not from 0 to {_LARGEST_EXTENT}: give "
            "the dimension a name (dim_param) if any size is meant"
        )
    return size


def _dtype(value: onnx.ValueInfoProto) -> str:
    element_type = value.type.tensor_type.elem_type
    if element_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        raise ModelError(f"input {value.name!r} is not a tensor of numbers")
    check_data_type(element_type, f"input {value.name!r}")
    dtype = str(helper.tensor_dtype_to_np_dtype(element_type))
    if dtype.startswith("complex"):
        raise ModelError(f"input {value.name!r} is a tensor of {dtype}, which TVM does not know")
    return dtype


def _text(value: onnx.ValueInfoProto) -> str:
    """The shape that the file gives an input, for an error."""
    dims = value.type.tensor_type.shape.dim
    return str(
        [dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "?") for dim in dims]
    )
