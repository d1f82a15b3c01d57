"""A function of tensor expressions applied to Relax values: what it computes, and of what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from ..errors import ArgumentError
from ..fallback.kernels.expressions import free_variables
from ..tvm_fixes.hooks import identity


class Traced:
    """The tensor expressions that a function gives for Relax values.

    Symbolic extents are variables of its own, so that no kernel shares any with its callers.

    Attributes
    ----------
    parameters : list of Tensor or Var
        What the expressions are made of: placeholders, and scalars behind them.
    arguments : list
        The Relax values that these stand for.
    outputs : list of Tensor

    With `narrow`, extents that are numbers are of int32, as te.placeholder makes them of Python's:
    te.scan takes no others.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        keywords: Mapping[str, Any],
        narrow: bool = False,
    ):
        self._narrow = narrow
        self.parameters: list[Any] = []
        self.arguments: list[Any] = []
        self._own: dict[Any, Any] = {}
        given = self._given(args)
        results = function(*given, **{name: self._given(v) for name, v in keywords.items()})
        several = isinstance(results, list | tuple | tvm_ffi.Array)
        self.outputs = list(results) if several else [results]
        if not self.outputs or not all(isinstance(output, te.Tensor) for output in self.outputs):
            raise ArgumentError(
                f"{function} returned {type(results).__name__}; call_te takes a function that "
                "returns one te.Tensor, or a list of them"
            )
        self._add_sizes()

    def types(self) -> list[relax.TensorType]:
        """The types of the results, in terms of the caller's variables."""
        return [
            relax.TensorType(list(map(self._outside, output.shape)), str(output.dtype))
            for output in self.outputs
        ]

    def _given(self, argument: Any) -> Any:
        """The tensor expression, or the constant, that stands for an argument."""
        if isinstance(argument, list | tuple | tvm_ffi.Array):
            values = [self._given(item) for item in argument]
            return tuple(values) if isinstance(argument, tuple) else values
        if isinstance(argument, Mapping):
            return {name: self._given(item) for name, item in argument.items()}
        if isinstance(argument, relax.ShapeExpr):
            return [self._extent(extent) for extent in argument.values]
        if tvm.ir.is_prim_expr(argument):
            if isinstance(argument, tvm.ir.Var) and str(argument.ty) != "int64":
                return self._scalar(argument)
            return self._extent(argument)
        return self._placeholder(argument) if isinstance(argument, relax.Expr) else argument

    def _placeholder(self, argument: relax.Expr) -> te.Tensor:
        ty = argument.ty
        if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
            raise ArgumentError(
                f"call_te takes tensors of known rank and shape, and was given {_refused(argument)}"
            )
        shape = [self._extent(extent) for extent in ty.shape.values]
        name = argument.name if isinstance(argument, relax.Var) else f"x{len(self.parameters)}"
        placeholder = te.placeholder(shape, str(ty.dtype), name=name)
        self.parameters.append(placeholder)
        self.arguments.append(argument)
        return placeholder

    def _scalar(self, argument: Any) -> Any:
        parameter = tirx.Var(argument.name, str(argument.ty))
        self.parameters.append(parameter)
        self.arguments.append(argument)
        return parameter

    def _extent(self, extent: Any) -> Any:
        """An extent in terms of variables of its own."""

        if isinstance(extent, tirx.IntImm) and self._narrow and int(extent) < 2**31:
            return tirx.IntImm("int32", int(extent))

        def renamed(var: Any) -> Any:
            return self._own.setdefault(var, tirx.Var(var.name, str(var.ty)))

        return tvm_ffi.structural_map(extent, (tvm.ir.Var, renamed))

    def _outside(self, extent: Any) -> Any:
        """An extent of a result in terms of the caller's variables."""
        if isinstance(extent, tirx.IntImm):
            return int(extent)
        back = {identity(own): outer for outer, own in self._own.items()}
        return tvm_ffi.structural_map(
            extent, (tvm.ir.Var, lambda var: back.get(identity(var), var))
        )

    def _add_sizes(self) -> None:
        """Take as scalars those extents in use that no placeholder's shape tells."""
        known = [p for p in self.parameters if isinstance(p, tvm.ir.Var)]
        for parameter in self.parameters:
            if isinstance(parameter, te.Tensor):
                known += [extent for extent in parameter.shape if isinstance(extent, tvm.ir.Var)]
        told = {identity(var) for var in known}
        for var in free_variables(*self.outputs):
            if identity(var) not in told:
                self.parameters.append(var)
                self.arguments.append(self._outside(var))


def _refused(argument: relax.Expr) -> str:
    """An argument that no te.Tensor can stand for, and what to give in its place."""
    ty = argument.ty
    if isinstance(argument, te.Tensor):
        return f"{argument}, a te.Tensor; give the Relax value that it is to stand for"
    if ty is None or ty.is_missing():
        return f"{argument}, which has not been emitted; give what builder.emit returns for it"
    if isinstance(ty, relax.TupleType):
        return (
            f"{argument}, a tuple of {len(ty.fields)}; give its tensors, in a list or each for "
            "itself (of a variable, by relax.TupleGetItem)"
        )
    if isinstance(ty, relax.ShapeType):
        return f"{argument} of type {ty}; give a relax.ShapeExpr, or the extents"
    return f"{argument} of type {ty}; give its shape by match_cast first"
