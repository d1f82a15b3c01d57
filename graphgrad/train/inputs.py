"""The arguments of a step's calls: checked against the model, and bound to concrete shapes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax

from ..errors import ArgumentError, InputError
from ..frontend.model import Model
from ..ir.arrays import borrowed, to_numpy
from ..ir.tensor import has_shape, type_shape
from .shapes import bind_dimensions, fits, shape_text
from .staging import Staging

Array: TypeAlias = tvm.runtime.Tensor | np.ndarray

Inputs = Mapping[str, Any] | Any
"""Arrays by input name, or one array for a model with a single input."""


def input_types(model: Model) -> dict[str, relax.TensorType]:
    """The types of a model's inputs by name.

    Raises
    ------
    ArgumentError
        It is no `Model`, or an input is no tensor of known rank.
    """
    if not isinstance(model, Model):
        raise ArgumentError(
            f"expected a graphgrad.Model, given a {type(model).__name__}; make one with "
            "graphgrad.from_onnx or graphgrad.Model"
        )
    types = {var.name: var.ty for var in model.mod["main"].params[: len(model.inputs)]}
    for name, ty in types.items():
        if not has_shape(ty):
            raise ArgumentError(
                f"input {name!r} has type {ty}; only tensors are served, with a shape in which "
                "dimensions may be symbolic"
            )
    return types


def owned_types(model: Model) -> dict[str, relax.TensorType]:
    """The types of a model's parameters and statistics by name, in its order."""
    return {var.name: var.ty for var in model.mod["main"].params[len(model.inputs) :]}


def by_name(inputs: Inputs, names: list[str]) -> dict[str, Any]:
    """The inputs by name, in the model's order.

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
        close_matches = difflib.get_close_matches(str(unknown[0]), names, n=1)
        hint = f"; did you mean {close_matches[0]!r}?" if close_matches else ""
        raise InputError(f"the model has no input {unknown[0]!r}, only {names}{hint}")
    missing = [name for name in names if name not in inputs]
    if missing:
        raise InputError(f"missing input(s) {missing}; the model has inputs {names}")
    return {name: inputs[name] for name in names}


def read_arrays(
    values: Mapping[str, Any], device: tvm.runtime.Device, kind: str = "input"
) -> dict[str, Array]:
    """Arrays of any origin as they can be looked at: nothing is copied to the device yet.

    Returns
    -------
    arrays : dict
        A tensor on the device where kernels can use the caller's memory, else a numpy array.

    Raises
    ------
    InputError
        Something is no array of numbers; names the culprit.
    """
    arrays: dict[str, Array] = {}
    for name, value in values.items():
        try:
            tensor = borrowed(value, device)
            arrays[name] = to_numpy(value) if tensor is None else tensor
        except InputError as error:
            raise InputError(f"{kind} {name!r}: {error}") from error
    return arrays


def placed(
    arrays: Mapping[str, Array], staging: Staging, kind: str = "input"
) -> dict[str, tvm.runtime.Tensor]:
    """The arrays of `read_arrays`, as tensors on a device.

    Those that are copied are good until the next copy of their kind and name.

    Raises
    ------
    DeviceError
    """
    return {
        name: staging.copy(f"{kind} {name!r}", array) if isinstance(array, np.ndarray) else array
        for name, array in arrays.items()
    }


def bind_shapes(arrays: Mapping[str, Array], types: Mapping[str, Any]) -> dict[Any, int]:
    """Check inputs against their types; return the extents of the symbolic dimensions.

    Raises
    ------
    InputError
        As `check_types`, and for an input without elements.
    """
    extents = check_types(arrays, types, "input")
    for name, shape in zip(arrays, shapes_of(arrays), strict=True):
        if 0 in shape:
            raise InputError(f"input {name!r}: shape {shape} is empty; give at least one example")
    return extents


def check_types(arrays: Mapping[str, Array], types: Mapping[str, Any], kind: str) -> dict[Any, int]:
    """Check tensors against types; return the extents of the symbolic dimensions.

    Parameters
    ----------
    arrays : mapping
        Tensors or numpy arrays by name.
    types : mapping
        A ``relax.TensorType`` with a shape for each.
    kind : str
        What errors call them.

    Raises
    ------
    InputError
        A dtype, rank or extent does not fit; names the tensor, what was expected and given.
    """
    extents: dict[Any, int] = {}
    for name, tensor in arrays.items():
        if str(tensor.dtype) != str(types[name].dtype):
            raise InputError(
                f"{kind} {name!r}: expected dtype {types[name].dtype}, given {tensor.dtype}; "
                "convert it (.astype in NumPy, .to in PyTorch)"
            )
        bind_dimensions(type_shape(types[name]), tensor.shape, extents)
    # A second loop, because a dimension such as 2 * n may come before the input that tells n.
    for name, shape in zip(arrays, shapes_of(arrays), strict=True):
        expected = type_shape(types[name])
        if not fits(expected, shape, extents):
            raise InputError(
                f"{kind} {name!r}: expected shape {shape_text(expected, extents)}, given {shape}"
            )
    return extents


def shapes_of(arrays: Mapping[str, Array]) -> tuple[tuple[int, ...], ...]:
    """The shapes of tensors, in order: the key under which a compiled function is kept."""
    return tuple(tuple(map(int, tensor.shape)) for tensor in arrays.values())


def check_seed(seed: Any) -> int:
    """A seed of dropouts, after checking that it is a whole number from 0, below 2³¹.

    It becomes the upper half of a signed word of 64 bits, whose lower half counts calls.

    Raises
    ------
    ArgumentError
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 31:
        raise ArgumentError(f"seed={seed!r} must be a whole number from 0, below 2**31")
    return int(seed)


def check_switch(name: str, value: Any) -> bool:
    """The value of an argument that is True or False, after checking that it is.

    Raises
    ------
    ArgumentError
    """
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}={value!r} must be True or False")
    return value


def names_in(wrt: Any) -> list[str]:
    """`wrt` as a list, after checking that it is a name or a sequence of names.

    Raises
    ------
    ArgumentError
    """
    names = [wrt] if isinstance(wrt, str) else wrt
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(f"wrt={wrt!r} must be a name or a list of names")
    return list(names)
