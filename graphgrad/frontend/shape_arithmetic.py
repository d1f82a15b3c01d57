"""Operators that exporters compute shapes with, computed at import on known values.

Elements are Python objects in numpy arrays of dtype object: numpy moves and broadcasts them, and
`ExactArithmetic` computes with them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from .exact_arithmetic import COMPARISONS, ExactArithmetic
from .known_values import LARGEST, KnownValue, NotKnownError, integral

Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class Folding:
    """One node whose inputs are known.

    Attributes
    ----------
    op_type : str
    inputs : sequence of KnownValue or None
    attributes : mapping
        Values as `onnx.helper.get_attribute_value` returns them.
    output_count : int
    arithmetic : ExactArithmetic
    """

    op_type: str
    inputs: Sequence[KnownValue | None]
    attributes: Attributes
    output_count: int
    arithmetic: ExactArithmetic

    def known(self, index: int) -> KnownValue:
        """An input that must be given; without it the node is not computed at import."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise NotKnownError
        return value

    def integers(self, index: int, attribute: str) -> list[int] | None:
        """Whole numbers given as an input or, in earlier versions, as an attribute.

        None if they are left out. Symbolic ones are refused.
        """
        if index < len(self.inputs) and self.inputs[index] is not None:
            dimensions = self.known(index).dimensions()
            if dimensions is None or not all(isinstance(d, int) for d in dimensions):
                raise NotKnownError
            return dimensions
        attribute_value = self.attributes.get(attribute)
        return None if attribute_value is None else list(attribute_value)


def fold(folding: Folding) -> tuple[KnownValue, ...] | None:
    """The outputs of a node, or None if they are not known exactly at import."""
    operator = _OPERATORS.get(folding.op_type)
    if operator is None:
        return None
    try:
        result = operator(folding)
    except (NotKnownError, ValueError, IndexError, OverflowError):
        return None  # an operand that does not fit is reported by the translation that follows
    outputs = result if isinstance(result, tuple) else (result,)
    return outputs if all(map(_fits, outputs)) else None


def shape_value(dimensions: Sequence[Any], attributes: Attributes) -> KnownValue:
    """The value of a Shape node for a tensor of these extents."""
    selected = slice(attributes.get("start", 0), attributes.get("end"))
    return KnownValue.vector(list(dimensions)[selected], "int64")


def size_value(dimensions: Sequence[Any], arithmetic: ExactArithmetic) -> KnownValue:
    """The value of a Size node for a tensor of these extents."""
    return _scalar(reduce(partial(arithmetic.binary, "Mul"), dimensions, 1), "int64")


def _fits(value: KnownValue) -> bool:
    """Whether a value is small enough, and its numbers are within the range of its dtype."""
    dtype = np.dtype(value.dtype)
    if value.elements.size > LARGEST:
        return False
    if dtype.kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    numbers = [element for element in value.elements.flat if isinstance(element, int)]
    return all(limits.min <= number <= limits.max for number in numbers)


def _scalar(element: Any, dtype: str) -> KnownValue:
    """The value of rank 0 with this element."""
    elements = np.empty((), dtype=object)
    elements[()] = element
    return KnownValue(elements, dtype)


def _elementwise(function: Callable[..., Any], *operands: np.ndarray) -> np.ndarray:
    """A function of elements, applied to broadcast arrays of them."""
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    if np.prod(shape) > LARGEST:
        raise NotKnownError
    result = np.empty(shape, dtype=object)
    broadcast = [np.broadcast_to(operand, shape) for operand in operands]
    for index in np.ndindex(shape):
        result[index] = function(*(operand[index] for operand in broadcast))
    return result


def _binary(node: Folding) -> KnownValue:
    a, b = node.known(0), node.known(1)
    # C's fmod has another sign, and operators before opset 7 broadcast along an axis.
    if node.attributes.get("fmod") or "axis" in node.attributes:
        raise NotKnownError
    elements = _elementwise(partial(node.arithmetic.binary, node.op_type), a.elements, b.elements)
    return KnownValue(elements, "bool" if node.op_type in COMPARISONS else a.dtype)


def _variadic(node: Folding) -> KnownValue:
    op_type = "Add" if node.op_type == "Sum" else node.op_type
    function = partial(node.arithmetic.binary, op_type)
    operands = [node.known(index) for index in range(len(node.inputs))]
    elements = [operand.elements for operand in operands]
    return KnownValue(
        reduce(lambda a, b: _elementwise(function, a, b), elements), operands[0].dtype
    )


def _unary(node: Folding) -> KnownValue:
    x = node.known(0)
    function = partial(node.arithmetic.unary, node.op_type)
    return KnownValue(_elementwise(function, x.elements), x.dtype)


def _cast(node: Folding) -> KnownValue:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(node.attributes["to"]))
    return _cast_to(node, dtype)


def _cast_like(node: Folding) -> KnownValue:
    return _cast_to(node, np.dtype(node.known(1).dtype))


def _cast_to(node: Folding, dtype: np.dtype) -> KnownValue:
    if dtype.kind not in "biuf":
        raise NotKnownError
    function = partial(node.arithmetic.cast, dtype=dtype)
    return KnownValue(_elementwise(function, node.known(0).elements), dtype.name)


def _where(node: Folding) -> KnownValue:
    condition, x, y = (node.known(index) for index in range(3))
    elements = _elementwise(
        lambda holds, a, b: a if holds else b, condition.elements, x.elements, y.elements
    )
    return KnownValue(elements, x.dtype)


def _moving(function: Callable[[Folding, np.ndarray], Any]) -> Callable[[Folding], KnownValue]:
    """Make an operator of a function that only moves the elements of input 0."""

    def operator(node: Folding) -> KnownValue:
        x = node.known(0)
        moved = function(node, x.elements)
        if isinstance(moved, np.ndarray):
            return KnownValue(moved, x.dtype)
        return _scalar(moved, x.dtype)  # numpy gives the bare element where no axis is left

    return operator


def _concat(node: Folding) -> KnownValue:
    parts = [node.known(index) for index in range(len(node.inputs))]
    axis = node.attributes["axis"]
    return KnownValue(np.concatenate([part.elements for part in parts], axis), parts[0].dtype)


def _constant_of_shape(node: Folding) -> KnownValue:
    value = node.attributes.get("value")
    array = np.zeros(1, "float32") if value is None else numpy_helper.to_array(value)
    shape = node.integers(0, "")
    if array.dtype.kind not in "biuf":
        raise NotKnownError
    # In float, as the product of huge extents would overflow int64.
    if shape is None or np.prod(shape, dtype=float) > LARGEST:
        raise NotKnownError
    return KnownValue.of_array(np.full(shape, array.reshape(-1)[0], array.dtype))


def _expand(node: Folding, x: np.ndarray) -> np.ndarray:
    shape = np.broadcast_shapes(x.shape, tuple(node.integers(1, "") or ()))
    if np.prod(shape, dtype=float) > LARGEST:
        raise NotKnownError
    return np.broadcast_to(x, shape)


def _flatten(node: Folding, x: np.ndarray) -> np.ndarray:
    axis = node.attributes.get("axis", 1) % (x.ndim + 1)
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


def _gather(node: Folding, x: np.ndarray) -> Any:
    indices = node.known(1)
    if not indices.is_concrete:
        raise NotKnownError
    return np.take(x, indices.array(), axis=node.attributes.get("axis", 0))


def _range(node: Folding) -> KnownValue:
    bounds = [node.known(index) for index in range(3)]
    start, limit, step = (integral(bound.elements.reshape(-1)[0]) for bound in bounds)
    if not all(isinstance(value, int) for value in (start, limit, step)) or step == 0:
        raise NotKnownError
    values = range(start, limit, step)
    if len(values) > LARGEST:
        raise NotKnownError
    return KnownValue.vector(values, bounds[0].dtype)


def _reduced(op_type: str, identity: Any) -> Callable[[Folding], KnownValue]:
    """An operator that combines elements over axes.

    `identity` is the result over no elements; None if there is no such result.
    """

    def operator(node: Folding) -> KnownValue:
        x = node.known(0)
        axes = node.integers(1, "axes")
        if not axes and not node.attributes.get("noop_with_empty_axes"):
            axes = list(range(x.elements.ndim))
        if np.dtype(x.dtype).kind == "f":  # a float sum depends on an order that ONNX leaves open
            raise NotKnownError
        elements = x.elements
        # From the last axis on, so that an axis that goes does not renumber those still to come.
        for axis in sorted((a % elements.ndim for a in axes or ()), reverse=True):
            elements = _reduced_axis(node, op_type, identity, elements, axis)
        return KnownValue(elements, x.dtype)

    return operator


def _reduced_axis(
    node: Folding, op_type: str, identity: Any, elements: np.ndarray, axis: int
) -> np.ndarray:
    slices = list(np.moveaxis(elements, axis, 0))
    if not slices and identity is None:
        raise NotKnownError
    function = partial(node.arithmetic.binary, op_type)
    # Slices of a vector are bare elements: they become arrays of rank 0.
    slice_arrays = [_scalar(item, "").elements if np.ndim(item) == 0 else item for item in slices]
    if slice_arrays:
        result = reduce(lambda a, b: _elementwise(function, a, b), slice_arrays)
    else:
        result = np.full(np.delete(elements.shape, axis), identity, dtype=object)
    return np.expand_dims(result, axis) if node.attributes.get("keepdims", 1) else result


def _reshape(node: Folding, x: np.ndarray) -> np.ndarray:
    target = node.integers(1, "shape") or []
    # Without allowzero, a 0 stands for the extent of the same axis of the input.
    if not node.attributes.get("allowzero", 0):
        target = [x.shape[i] if size == 0 else size for i, size in enumerate(target)]
    return x.reshape(target)


def _scatter_elements(node: Folding, x: np.ndarray) -> np.ndarray:
    indices, updates = node.known(1), node.known(2)
    if not indices.is_concrete or node.attributes.get("reduction", b"none") != b"none":
        raise NotKnownError
    result = x.copy()
    axis = node.attributes.get("axis", 0)
    np.put_along_axis(result, indices.array(), updates.elements, axis)
    return result


def _slice(node: Folding, x: np.ndarray) -> np.ndarray:
    starts, ends = node.integers(1, "starts"), node.integers(2, "ends")
    if starts is None or ends is None:
        raise NotKnownError
    axes = node.integers(3, "axes") or list(range(len(starts)))
    steps = node.integers(4, "steps") or [1] * len(starts)
    slices = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        slices[axis] = slice(start, end, step)
    return x[tuple(slices)]


def _split(node: Folding) -> tuple[KnownValue, ...]:
    x = node.known(0)
    axis = node.attributes.get("axis", 0)
    sizes = node.integers(1, "split")
    if sizes is None:  # equal parts, of which the last ones have what is left
        extent, count = x.elements.shape[axis], node.output_count
        largest = -(-extent // count)
        sizes = [min(largest, max(extent - largest * i, 0)) for i in range(count)]
    parts = np.split(x.elements, np.cumsum(sizes)[:-1], axis)
    return tuple(KnownValue(part, x.dtype) for part in parts)


def _squeeze(node: Folding, x: np.ndarray) -> Any:
    axes = node.integers(1, "axes")
    return np.squeeze(x, None if axes is None else tuple(axes))


def _tile(node: Folding, x: np.ndarray) -> np.ndarray:
    repeats = node.integers(1, "")
    if repeats is None or x.size * np.prod(repeats, dtype=float) > LARGEST:
        raise NotKnownError
    return np.tile(x, repeats)


def _transpose(node: Folding, x: np.ndarray) -> np.ndarray:
    return np.transpose(x, node.attributes.get("perm"))


def _unsqueeze(node: Folding, x: np.ndarray) -> np.ndarray:
    return np.expand_dims(x, tuple(node.integers(1, "axes") or ()))


_OPERATORS: dict[str, Callable[[Folding], KnownValue | tuple[KnownValue, ...]]] = {
    **dict.fromkeys(("Add", "And", "Div", "Mod", "Mul", "Or", "Pow", "Sub", "Xor"), _binary),
    **dict.fromkeys(COMPARISONS, _binary),
    **dict.fromkeys(("Max", "Min", "Sum"), _variadic),
    **dict.fromkeys(("Abs", "Ceil", "Floor", "Neg", "Not", "Reciprocal", "Round", "Sqrt"), _unary),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _moving(_expand),
    "Flatten": _moving(_flatten),
    "Gather": _moving(_gather),
    "Range": _range,
    "ReduceMax": _reduced("Max", None),
    "ReduceMin": _reduced("Min", None),
    "ReduceProd": _reduced("Mul", 1),
    "ReduceSum": _reduced("Add", 0),
    "Reshape": _moving(_reshape),
    "ScatterElements": _moving(_scatter_elements),
    "Slice": _moving(_slice),
    "Split": _split,
    "Squeeze": _moving(_squeeze),
    "Tile": _moving(_tile),
    "Transpose": _moving(_transpose),
    "Unsqueeze": _moving(_unsqueeze),
    "Where": _where,
}
