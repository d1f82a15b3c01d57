"""A kernel as a model: what calls it, for each combination of shapes and dtypes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import relax, tirx

from ..errors import ArgumentError
from ..frontend.model import Model
from ..ir.visits import nodes_in
from ..ops.call_te import call_te
from .differentiable import Differentiable, differentiable

Signature = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and dtype of each argument."""


@dataclass(frozen=True)
class Kernel:
    """A kernel of a user's: a function of tensor expressions, or a PrimFunc.

    Attributes
    ----------
    function : callable or PrimFunc
    name : str
    outputs : int
        How many tensors it returns; those of a PrimFunc are its last parameters.
    """

    function: Any
    name: str
    outputs: int

    @property
    def is_script(self) -> bool:
        """Whether it is a PrimFunc, whose parameters have types."""
        return isinstance(self.function, tirx.PrimFunc)

    @property
    def arguments(self) -> list[str]:
        """The names of the tensors that it takes.

        Raises
        ------
        ArgumentError
            It is no kernel, or takes what is no tensor.
        """
        if self.is_script:
            return [param.name for param in self._buffers()[: -self.outputs]]
        if not callable(self.function):
            raise ArgumentError(
                f"expected a function of te.Tensors or a PrimFunc, given {self.function!r}"
            )
        parameters = inspect.signature(self.function).parameters.values()
        names = [parameter.name for parameter in parameters if _is_tensor(parameter)]
        if not names:
            raise ArgumentError(f"kernel {self.name!r} takes no tensor")
        return names

    def form(self, signature: Signature, target: Any) -> Differentiable:
        """The kernel for arguments of some shapes and dtypes, with its derivatives.

        Raises
        ------
        MissingGradientError
            A gradient cannot be derived.
        """
        if self.is_script:
            params, call = self._of_script()
        else:
            params, call = self._of_expressions(signature)
        builder = relax.BlockBuilder()
        with builder.function("main", params):
            builder.emit_func_output(builder.emit(call(builder)))
        return differentiable(Model(builder.get(), {}), None, target)

    def _of_expressions(self, signature: Signature) -> tuple[list[Any], Callable[[Any], Any]]:
        params = [
            relax.Var(name, relax.TensorType(shape, dtype))
            for name, (shape, dtype) in zip(self.arguments, signature, strict=True)
        ]
        return params, lambda _: call_te(self.function, *params, name=self.name)

    def _of_script(self) -> tuple[list[Any], Callable[[Any], Any]]:
        buffers = [(param.name, param.ty) for param in self._buffers()]
        # No function shares symbolic extents with another one.
        extents = [extent for _, ty in buffers for extent in ty.shape]
        own = {var: tirx.Var(var.name, "int64") for var in nodes_in(extents, tirx.Var)}
        substitution = tirx.Var, lambda var: own.get(var, var)
        variables = [
            relax.Var(name, relax.TensorType(_substituted(ty.shape, substitution), str(ty.dtype)))
            for name, ty in buffers
        ]
        params, results = variables[: -self.outputs], variables[-self.outputs :]
        types = [result.ty for result in results]

        def call(builder: relax.BlockBuilder) -> Any:
            variable = builder.add_func(self.function, self.name)
            return relax.call_tir(variable, relax.Tuple(params), types)

        return params, call

    def _buffers(self) -> Sequence[Any]:
        """The parameters of a PrimFunc, which must be tensors."""
        params = list(self.function.params)
        scalars = [param.name for param in params if not tirx.is_buffer_var(param)]
        if scalars or len(params) <= self.outputs:
            raise ArgumentError(
                f"kernel {self.name!r} must take tensors alone, and at least one more than the "
                f"{self.outputs} that it writes; it has {[p.name for p in params]}, of which "
                f"{scalars} are no tensors"
            )
        return params


def _substituted(shape: Sequence[Any], substitution: Any) -> list[Any]:
    return [tvm_ffi.structural_map(extent, substitution) for extent in shape]


def _is_tensor(parameter: inspect.Parameter) -> bool:
    """Whether a parameter of a function of tensor expressions is a tensor: it has no default."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return parameter.kind in positional and parameter.default is inspect.Parameter.empty


def check_outputs(outputs: Any) -> int:
    """A number of results, after checking that it is a whole number from 1.

    Raises
    ------
    ArgumentError
    """
    if isinstance(outputs, bool) or not isinstance(outputs, int) or outputs < 1:
        raise ArgumentError(f"outputs={outputs!r} must be a whole number, at least 1")
    return outputs
