"""`call_te`: a tensor expression in a Relax program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from ..errors import ArgumentError
from ..fallback.kernels.expressions import kernel_of
from .tensor import Tensor


def call_te(function: Callable[..., Any], *args: Any, name: str | None = None) -> Any:
    """Return a call of a kernel that is made of tensor expressions, scans included.

    Parameters
    ----------
    function : callable
        Maps te.Tensors to one, or to several. It is given a placeholder for each tensor among
        `args`, in lists and tuples too, and everything else as it is.
    args : `Tensor`, relax.Var, numbers, strings, lists
        Symbolic extents (of dtype int64) among them are replaced like those in shapes.
    name : str, optional
        Of the kernel; the function's name by default.

    Returns
    -------
    Tensor, list of Tensor or relax.Call
        Where `args` has a `Tensor` (in a rule, in a custom operator): the results. Else an
        expression that the current BlockBuilder, which now holds the kernel, is to emit.

    Raises
    ------
    ArgumentError
        There is no builder to write into, or the function returned no tensor expression.

    Examples
    --------
    >>> with builder.function("main", [x]):
    ...     y = builder.emit(gg.call_te(lambda a: te.compute(a.shape, lambda *i: a[i] * a[i]), x))
    """
    call = _Call()
    placeholders = [call.given(argument) for argument in args]
    builder = call.emitter.builder if call.emitter else relax.BlockBuilder.current()
    if builder is None:
        raise ArgumentError(
            "call_te writes into a BlockBuilder: call it inside `with builder.function(...)`"
        )
    results = function(*placeholders)
    outputs = [results] if isinstance(results, te.Tensor) else list(results)
    if not outputs or not all(isinstance(output, te.Tensor) for output in outputs):
        raise ArgumentError(
            f"{function} returned {type(results).__name__}; call_te takes a function that returns "
            "tensor expressions"
        )
    func = kernel_of(call.parameters, outputs)
    variable = builder.add_func(func, name or _name(function))
    types = [
        relax.TensorType([call.outside(e) for e in output.shape], str(output.dtype))
        for output in outputs
    ]
    result = relax.call_tir(variable, relax.Tuple(call.arguments), types)
    return call.emitter.emit(result) if call.emitter else result


class _Call:
    """What is given for the arguments of a call."""

    def __init__(self) -> None:
        self.emitter: Any = None
        self.parameters: list[Any] = []
        self.arguments: list[Any] = []
        self.inside: dict[Any, Any] = {}

    def given(self, argument: Any) -> Any:
        """Return what the function is given for an argument."""
        if isinstance(argument, list | tuple):
            return type(argument)(map(self.given, argument))
        if isinstance(argument, Tensor):
            self.emitter = self.emitter or argument.emitter
            argument = argument.expr
        if isinstance(argument, relax.Expr) and isinstance(argument.ty, relax.TensorType):
            shape = [self._extent(extent) for extent in argument.ty.shape]
            label = getattr(argument, "name", None) or f"x{len(self.parameters)}"
            placeholder = te.placeholder(shape, str(argument.ty.dtype), name=label)
            self.parameters.append(placeholder)
            self.arguments.append(argument)
            return placeholder
        return self._extent(argument) if tvm.ir.is_prim_expr(argument) else argument

    def outside(self, extent: Any) -> Any:
        """Return an extent of a result in terms of the caller's variables."""
        back = {inner: outer for outer, inner in self.inside.items()}
        return tvm_ffi.structural_map(extent, (tvm.ir.Var, lambda var: back.get(var, var)))

    def _extent(self, extent: Any) -> Any:
        """Return an extent in terms of the kernel's own variables."""

        def renamed(var: Any) -> Any:
            return self.inside.setdefault(var, tirx.Var(var.name, str(var.ty)))

        return tvm_ffi.structural_map(extent, (tvm.ir.Var, renamed))


def _name(function: Any) -> str:
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else "kernel"
