"""Model: a Relax module whose parameters have values and names."""

from __future__ import annotations

import copy
import difflib
import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from ..errors import ArgumentError, InputError, ModelError
from ..ir.calls import result_types
from ..ir.tensor import dimension_text, has_shape
from .arrays import FLOAT_DTYPES, as_array, dtype_name
from .onnx_values import with_values, without_values
from .relax_main import make_outputs_literal, reorder_parameters

InputType = tuple[tuple[int | str, ...] | None, str]


class Model:
    """A Relax module with named, valued parameters; whether it trains is chosen at use.

    Parameters
    ----------
    mod : tvm.IRModule
        Its function ``main`` returns a tensor or a tuple of tensors. Names are the names of
        main's parameters.
    params : mapping of str to array
        Values of the parameters that may train (numpy, torch or TVM; copied). Any parameter of
        main that is neither here nor in `state` is an input.
    state : mapping of str to array, optional
        Running statistics: what batch norms update by themselves.
    outputs : sequence of str, optional
        Names of the outputs; ``output``, or ``output_0``, ``output_1`` … by default.
    frozen : iterable of str
        Names of parameters that never train, besides those of integer or boolean dtype.
    constants : iterable of str
        Names of parameters, such as masks, that train only where ``wrt=`` names them.
    notes : iterable of str
        What was repaired and decided when the model was imported.
    proto : onnx.ModelProto, optional
        The ONNX model that the module comes from, repaired.

    Attributes
    ----------
    mod : tvm.IRModule
        ``main`` takes the inputs, then the parameters, then the state, and returns a tensor if
        there is one output, else a literal tuple.
    params, state : dict[str, numpy.ndarray]
    inputs, outputs : list[str]
    frozen, constants : frozenset[str]
    notes : list[str]
    skeleton : onnx.ModelProto or None
        The ONNX model, without the values of parameters and state.

    Raises
    ------
    ModelError
        If `mod` has no function main, or main's signature cannot be used.
    InputError
        If a name is no parameter of main, or an array does not fit its parameter.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        params: Mapping[str, Any],
        state: Mapping[str, Any] | None = None,
        *,
        outputs: Iterable[str] | None = None,
        frozen: Iterable[str] = (),
        constants: Iterable[str] = (),
        notes: Iterable[str] = (),
        proto: onnx.ModelProto | None = None,
    ):
        main = _main(mod)
        variables = {var.name: var for var in main.params}
        params = _checked(params, variables, "parameter")
        state = _checked({} if state is None else state, variables, "statistic")
        in_both = sorted(params.keys() & state.keys())
        if in_both:
            raise InputError(f"{in_both} are given both as parameters and as state: choose one")

        self.inputs = [name for name in variables if name not in params and name not in state]
        self.params = {name: params[name] for name in variables if name in params}
        self.state = {name: state[name] for name in variables if name in state}
        ordered_names = [*self.inputs, *self.params, *self.state]
        main = make_outputs_literal(
            reorder_parameters(main, [variables[name] for name in ordered_names])
        )
        module = mod.clone()
        module["main"] = main
        self.mod = relax.transform.Normalize()(module)
        self.outputs = _output_names(main, outputs)
        # Integers and booleans have no gradient, so these parameters are frozen in any case.
        self.frozen = self._known(frozen) | {
            name for name, array in self.params.items() if array.dtype.name not in FLOAT_DTYPES
        }
        self.constants = self._known(constants)
        self.notes = list(notes)
        owned = {*self.params, *self.state}
        self.skeleton = None if proto is None else without_values(proto, owned)

    @property
    def proto(self) -> onnx.ModelProto | None:
        """The ONNX model that the module comes from, repaired, with the values of now; a copy.

        None if the module comes from none.
        """
        if self.skeleton is None:
            return None
        return with_values(self.skeleton, {**self.params, **self.state})

    def trainable(self) -> list[str]:
        """The names of the parameters that train by default: neither frozen nor constants."""
        return [name for name in self.params if name not in self.frozen | self.constants]

    @property
    def weights(self) -> set[str]:
        """The names of the parameters and statistics that mixed precision may round.

        Constants, such as masks, are none of them: a mask may be the least float32.
        """
        return {*self.params, *self.state} - self.constants

    def freeze(self, *names: str) -> Model:
        """The same model with more parameters that never train.

        Raises
        ------
        ArgumentError
            If a name is not that of a parameter.
        """
        # A shallow copy: module and arrays are shared, only the set of names is replaced.
        frozen = copy.copy(self)
        frozen.frozen = self.frozen | self._known(names)
        return frozen

    def without_values(self) -> Model:
        """The same model with arrays that have shapes and dtypes, and take no memory."""
        model = copy.copy(self)
        model.params, model.state = (
            {name: _without_memory(array) for name, array in arrays.items()}
            for arrays in (self.params, self.state)
        )
        return model

    def matching(self, pattern: str) -> list[str]:
        """The names of the parameters that a name or a pattern such as ``layer1.*`` matches."""
        if pattern in self.params:
            return [pattern]
        return [name for name in self.params if fnmatch.fnmatchcase(name, pattern)]

    def input_types(self) -> dict[str, InputType]:
        """Shape and dtype of each input.

        A symbolic dimension is given by its name. The shape is ``None`` if not even the rank is
        known.
        """
        variables = self.mod["main"].params[: len(self.inputs)]
        return {var.name: _shape_and_dtype(var) for var in variables}

    def __repr__(self) -> str:
        count = sum(array.size for array in self.params.values())
        inputs = ", ".join(
            f"{name}: {_type_text(*input_type)}" for name, input_type in self.input_types().items()
        )
        result_tys = result_types(self.mod["main"].ret_ty)
        outputs = ", ".join(
            f"{output_name}: {_type_text(_shape(ty), dtype_name(ty.dtype))}"
            for output_name, ty in zip(self.outputs, result_tys, strict=True)
        )
        return (
            f"Model({inputs} -> {outputs}; {len(self.params)} parameters with {count:,} numbers, "
            f"{len(self.params) - len(self.trainable())} frozen; {len(self.state)} statistics)"
        )

    def _known(self, names: Iterable[str]) -> frozenset[str]:
        """`names` as a set, after checking that each is a parameter."""
        names = frozenset(names)
        for name in sorted(names - self.params.keys()):
            raise ArgumentError(f"the model has no parameter {name!r}{hint(name, self.params)}")
        return names


def _without_memory(array: Any) -> Any:
    """An array of zeros like another one, of which all elements are one.

    Not of what somebody has put into a model since and is no array of numpy: it is judged as it is.
    """
    if not isinstance(array, np.ndarray):
        return array
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def _main(mod: tvm.IRModule) -> relax.Function:
    """The function main of a module, after checking that a `Model` can be made of it."""
    if not isinstance(mod, tvm.IRModule):
        raise ModelError(f"expected a tvm.IRModule, given a {type(mod).__name__}")
    function_names = [var.name_hint for var in mod.get_global_vars()]
    if "main" not in function_names or not isinstance(mod["main"], relax.Function):
        raise ModelError(
            f"the module has no Relax function 'main'; it has {sorted(function_names)}"
        )
    main = mod["main"]
    parameter_names = [var.name for var in main.params]
    repeated_names = sorted({name for name in parameter_names if parameter_names.count(name) > 1})
    if repeated_names:
        raise ModelError(
            f"several parameters of main are named {repeated_names}: give each its own name"
        )
    for var in main.params:
        if not isinstance(var.ty, relax.TensorType | tvm.ir.PrimType):
            raise ModelError(
                f"parameter {var.name!r} of main is a {type(var.ty).__name__}: "
                "only tensors and numbers can be passed"
            )
    return main


def _checked(
    values_by_name: Mapping[str, Any], variables: Mapping[str, relax.Var], kind: str
) -> dict[str, np.ndarray]:
    """Copy arrays to numpy, after checking that each fits a parameter of main."""
    if not isinstance(values_by_name, Mapping):
        raise InputError(
            f"expected a dict of {kind}s by name, given a {type(values_by_name).__name__}"
        )
    arrays = {}
    for name, value in values_by_name.items():
        if name not in variables:
            raise InputError(f"main has no parameter {name!r}{hint(name, variables)}")
        array = arrays[name] = as_array(name, value)
        shape, dtype = _shape_and_dtype(variables[name])
        if not _fits(array.shape, shape) or array.dtype.name != dtype:
            raise InputError(
                f"{kind} {name!r}: expected {_type_text(shape, dtype)}, "
                f"given {_type_text(array.shape, array.dtype.name)}"
            )
    return arrays


def _fits(actual_shape: tuple[int, ...], expected_shape: tuple[int | str, ...] | None) -> bool:
    """Whether a shape is the expected one; a symbolic extent, given by its name, fits any number.

    An expected shape of None has an unknown rank and fits everything.
    """
    if expected_shape is None:
        return True
    return len(actual_shape) == len(expected_shape) and all(
        isinstance(expected_size, str) or expected_size == actual_size
        for expected_size, actual_size in zip(expected_shape, actual_shape, strict=True)
    )


def hint(name: str, valid_names: Iterable[str]) -> str:
    """The end of an error message: the valid names like an unknown one, else all valid names."""
    close_names = difflib.get_close_matches(name, valid_names)
    return f"; close names are {close_names}" if close_names else f"; it has {sorted(valid_names)}"


def _output_names(main: relax.Function, names: Iterable[str] | None) -> list[str]:
    """A name for each result of main: those given, or the default ones."""
    count = len(result_types(main.ret_ty))
    if names is None:
        return ["output"] if count == 1 else [f"output_{index}" for index in range(count)]
    names = list(names)
    if len(names) != count:
        raise ModelError(f"main returns {count} tensors, but {len(names)} names are given: {names}")
    return names


def _shape_and_dtype(var: relax.Var) -> InputType:
    """The shape and dtype of a parameter; a number counts as a tensor without axes."""
    if isinstance(var.ty, tvm.ir.PrimType):
        return (), dtype_name(var.ty)
    return _shape(var.ty), dtype_name(var.ty.dtype)


def _shape(ty: relax.TensorType) -> tuple[int | str, ...] | None:
    """The extents of a tensor type; None if not even the rank is known."""
    if has_shape(ty):
        return tuple(_size(dim) for dim in ty.shape)
    # TVM writes an unknown rank as -1. With a rank alone, every extent is an unnamed unknown.
    return None if ty.ndim < 0 else ("?",) * ty.ndim


def _size(dim: tvm.ir.Expr) -> int | str:
    """An extent as a number, or the text of its expression where it is symbolic."""
    if isinstance(dim, tvm.tirx.IntImm):
        return int(dim)
    return dimension_text(dim)


def _type_text(shape: tuple[int | str, ...] | None, dtype: str) -> str:
    return f"{dtype} of any shape" if shape is None else f"{dtype}[{', '.join(map(str, shape))}]"
