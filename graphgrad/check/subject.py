"""The subject of a check: a model or a Relax function, with values for all that it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..errors import ArgumentError, InputError
from ..frontend.mode import is_seeded, specialize
from ..frontend.model import Model
from ..ir.arrays import to_numpy
from ..ir.inline import inline_calls
from ..ir.tensor import has_shape, is_float
from ..train.inputs import bind_shapes, by_name, check_types, input_types, read_arrays
from .compare import Arrays

_SYMBOLIC_EXTENT = 3
"""The extent of a symbolic dimension where values are drawn."""


@dataclass(frozen=True)
class Subject:
    """A Relax function of concrete shapes, and values for its parameters.

    Attributes
    ----------
    label : str
    mod : IRModule
    name : str
        Of the function.
    arrays : list of arrays
        One per parameter.
    wrt : list of str
        The parameters that are differentiated.
    """

    label: str
    mod: tvm.IRModule
    name: str
    arrays: Arrays
    wrt: list[str]


def of_model(model: Model, inputs: Any, generator: np.random.Generator) -> Subject:
    """A model with its parameters, at given inputs or at random ones.

    It is differentiated with respect to its float inputs and the parameters that train.

    Raises
    ------
    InputError
        The inputs do not fit the model.
    """
    types = input_types(model)
    if inputs is None:
        inputs = {name: _drawn(ty, generator) for name, ty in types.items()}
    arrays_by_name = read_arrays(by_name(inputs, model.inputs), tvm.cpu())
    specialized = specialize(model, training=None)
    extents = bind_shapes(
        arrays_by_name, {param.name: param.ty for param in specialized["main"].params}
    )
    mod = relax.transform.BindSymbolicVars(extents, "main")(specialized) if extents else specialized
    arrays: Arrays = [np.array(to_numpy(array)) for array in arrays_by_name.values()]
    arrays += [*model.params.values(), *model.state.values()]
    if is_seeded(specialized):
        # The word that dropouts take: the seed in its upper half, the call's number 0 in its lower.
        arrays.append(np.array(generator.integers(2**31, dtype="int64") << 32))
    floats = [name for name, ty in types.items() if is_float(str(ty.dtype))]
    return Subject("the model", mod, "main", arrays, [*floats, *model.trainable()])


def of_function(
    mod: tvm.IRModule, name: str, inputs: Any, generator: np.random.Generator
) -> Subject:
    """A Relax function at given inputs or at random ones.

    It is differentiated with respect to all float tensors that it takes.

    Raises
    ------
    ArgumentError
        There is no such function, or it takes something that is no tensor.
    InputError
        The inputs do not fit it.
    """
    params = inline_calls(mod, name).params
    for param in params:
        if not isinstance(param.ty, relax.TensorType):
            raise ArgumentError(
                f"{name!r} takes {param.name!r} of type {param.ty}; only functions of tensors are "
                "checked"
            )
    types = {param.name: param.ty for param in mod[name].params}
    if len(types) != len(params):
        raise ArgumentError(f"several parameters of {name!r} have one name; rename them")
    arrays_by_name = read_arrays(_named(inputs, types, generator), tvm.cpu())
    extents = check_types(arrays_by_name, types, "input")
    if extents:
        mod = relax.transform.BindSymbolicVars(extents, name)(mod)
    arrays = [np.array(to_numpy(array)) for array in arrays_by_name.values()]
    floats = [param for param, ty in types.items() if is_float(str(ty.dtype))]
    return Subject(f"function {name!r}", mod, name, arrays, floats)


def _named(inputs: Any, types: Mapping[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """A value for each parameter by name: as given, or random where nothing is given."""
    if inputs is None:
        return {name: _drawn(ty, generator) for name, ty in types.items()}
    if isinstance(inputs, Mapping) or (len(types) == 1 and not isinstance(inputs, list | tuple)):
        return by_name(inputs, list(types))
    if not isinstance(inputs, Sequence) or len(inputs) != len(types):
        raise InputError(f"give one array for each of {list(types)}, in a list or a dict by name")
    return dict(zip(types, inputs, strict=True))


def _drawn(ty: Any, generator: np.random.Generator) -> np.ndarray:
    """Random values of a type: floats in (−1, 1), integers 0 and 1."""
    if not has_shape(ty):
        raise ArgumentError(f"a value of type {ty} cannot be drawn: give inputs")
    shape = [
        int(extent) if isinstance(extent, tvm.tirx.IntImm) else _SYMBOLIC_EXTENT
        for extent in ty.shape
    ]
    dtype = str(ty.dtype)
    if is_float(dtype):
        return generator.uniform(-1, 1, shape).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)


def as_arrays(inputs: Any) -> Arrays:
    """The inputs of a numpy callable as a list of arrays.

    Raises
    ------
    InputError
        Something is no array of numbers.
    """
    if inputs is None:
        raise InputError("a numpy function needs inputs: a list of arrays, one per argument")
    values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    return [np.array(to_numpy(value)) for value in values]
