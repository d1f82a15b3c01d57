"""What a user hands to a step: checked against the model, and bound to concrete shapes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm

from ..errors import InputError
from ..lower.arrays import to_tensor
from ..ops.tensor import type_shape

Inputs = Mapping[str, Any] | Any
"""Arrays by input name, or one array for a model with a single input."""


def by_name(inputs: Inputs, names: list[str]) -> dict[str, Any]:
    """Return the inputs by name, in the model's order.

    Raises
    ------
    InputError
        A name is missing or unknown, or a single array was given for several inputs.
    """
    if not isinstance(inputs, Mapping):
        if len(names) != 1:
            raise InputError(
                f"the model has inputs {names}; give a dict of arrays by name, not "
                f"{type(inputs).__name__}"
            )
        return {names[0]: inputs}
    unknown = [name for name in inputs if name not in names]
    if unknown:
        close = difflib.get_close_matches(unknown[0], names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"the model has no input {unknown[0]!r}, only {names}{hint}")
    missing = [name for name in names if name not in inputs]
    if missing:
        raise InputError(f"missing input(s) {missing}; the model has inputs {names}")
    return {name: inputs[name] for name in names}


def tensors(arrays: Mapping[str, Any], device: Any) -> dict[str, tvm.runtime.Tensor]:
    """Convert arrays of any origin to tensors on a device; InputError names the culprit."""
    converted = {}
    for name, array in arrays.items():
        try:
            converted[name] = to_tensor(array, device, borrow=True)
        except InputError as error:
            raise InputError(f"input {name!r}: {error}") from error
    return converted


def bind_shapes(
    given: Mapping[str, tvm.runtime.Tensor], types: Mapping[str, Any]
) -> dict[Any, int]:
    """Check inputs against their types; return the extents of the symbolic dimensions.

    Parameters
    ----------
    given : mapping
        Tensors by name.
    types : mapping
        A ``relax.TensorType`` for each.

    Raises
    ------
    InputError
        A dtype, rank or extent does not fit; names the input, what was expected and given.
    """
    extents: dict[Any, int] = {}
    for name, tensor in given.items():
        ty = types[name]
        shape = tuple(int(extent) for extent in tensor.shape)
        if str(tensor.dtype) != str(ty.dtype):
            raise InputError(
                f"input {name!r}: expected dtype {ty.dtype}, given {tensor.dtype}; convert it "
                f"with .astype('{ty.dtype}')"
            )
        expected = type_shape(ty)
        fits = len(shape) == len(expected)
        for extent, dimension in zip(shape, expected, strict=False):
            if isinstance(dimension, tvm.tirx.Var):
                fits = fits and extents.setdefault(dimension, extent) == extent
            elif isinstance(dimension, int):
                fits = fits and extent == dimension
        if not fits:
            raise InputError(
                f"input {name!r}: expected shape {shape_text(expected)}, given {shape}"
            )
        if 0 in shape:
            raise InputError(f"input {name!r}: shape {shape} is empty; give at least one example")
    return extents


def shapes_of(given: Mapping[str, tvm.runtime.Tensor]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of tensors: what a compiled function is kept under."""
    return tuple(tuple(int(extent) for extent in tensor.shape) for tensor in given.values())


def shape_text(shape: list[Any]) -> str:
    """Write a shape for people, symbolic extents by name."""
    return "(" + ", ".join(str(extent) for extent in shape) + ("," if len(shape) == 1 else "") + ")"


def as_numpy(value: Any) -> np.ndarray:
    """Return targets as a numpy array, whatever they were given as."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, list | tuple | int | float):
        return np.asarray(value)
    return to_tensor(value).numpy()
