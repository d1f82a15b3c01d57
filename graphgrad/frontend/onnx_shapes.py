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

Shape = Sequence[int | None]


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
    symbols: dict[str, tirx.Var | int] = dict(pinned)
    plain = {d.dim_param for v in graph.input for d in v.type.tensor_type.shape.dim}
    types = {}
    for value in graph.input:
        tensor = value.type.tensor_type
        dtype = _dtype(value)
        given = shapes.get(value.name)
        if not tensor.HasField("shape"):
            types[value.name] = _unranked(given, dtype)
            continue
        dims = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.dim_param:
                dims.append(_symbolic(dim.dim_param, symbols, plain))
            elif dim.HasField("dim_value"):
                dims.append(dim.dim_value)
            elif given is not None and given[axis] is not None:
                dims.append(given[axis])
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
        given = shapes[value.name]
        check_sizes(value.name, given)
        if not value.type.tensor_type.HasField("shape"):
            continue
        dims = value.type.tensor_type.shape.dim
        if len(given) != len(dims):
            raise InputError(
                f"shapes: input {value.name!r} has {len(dims)} dimensions {_text(value)}, "
                f"given {tuple(given)}"
            )
        for dim, size in zip(dims, given, strict=True):
            if size is None:
                continue
            fixed = pinned.setdefault(dim.dim_param, size) if dim.dim_param else dim.dim_value
            if (dim.dim_param or dim.HasField("dim_value")) and fixed != size:
                raise InputError(
                    f"shapes: input {value.name!r} is {_text(value)}, given {tuple(given)}: "
                    f"{dim.dim_param or 'a dimension'} is {fixed} and cannot be {size} as well"
                )
    return pinned


def check_sizes(name: str, given: Shape) -> None:
    """Raise an InputError unless a shape given for an input is made of whole numbers and None."""
    is_shape = isinstance(given, Sequence) and not isinstance(given, str)
    if not is_shape or not all(
        size is None or (isinstance(size, int | np.integer) and size >= 0) for size in given
    ):
        raise InputError(f"shapes: input {name!r}: expected whole numbers, given {given!r}")


def _symbolic(
    text: str, symbols: dict[str, tirx.Var | int], plain: set[str]
) -> tirx.Var | tirx.Expr | int:
    """The variable of a dimension's name, or an expression such as ``2*N`` of others."""
    parts = [part for part in re.split(r"[-+*/ ]+", text) if part and not part.isdigit()]
    if text not in symbols and parts != [text] and all(part in plain for part in parts):
        for part in parts:
            symbols.setdefault(part, tirx.Var(part, "int64"))
        return stock.parse_shape_name(text, symbols)
    return symbols.setdefault(text, tirx.Var(text, "int64"))


def _unranked(given: Shape | None, dtype: str) -> relax.TensorType:
    if given is None:
        return relax.TensorType(None, dtype)
    return relax.TensorType(
        [tirx.Var(f"d{i}", "int64") if size is None else size for i, size in enumerate(given)],
        dtype,
    )


def _dtype(value: onnx.ValueInfoProto) -> str:
    elem_type = value.type.tensor_type.elem_type
    if elem_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        raise ModelError(f"input {value.name!r} is not a tensor of numbers")
    return str(helper.tensor_dtype_to_np_dtype(elem_type))


def _text(value: onnx.ValueInfoProto) -> str:
    dims = value.type.tensor_type.shape.dim
    return str([d.dim_param or (d.dim_value if d.HasField("dim_value") else "?") for d in dims])
