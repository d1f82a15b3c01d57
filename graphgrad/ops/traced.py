"""A function of tensor expressions, traced: called once with placeholders for Relax values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from ..errors import ArgumentError
from ..fallback.kernels.expressions import free_variables
from ..ir.tensor import has_shape
from ..tvm_fixes.hooks import identity


class Traced:
    """The tensor expressions that a function gives for Relax values.

    Symbolic extents are replaced by variables of its own, so that no kernel shares any with its
    callers.

    Attributes
    ----------
    parameters : list of Tensor or Var
        The parameters of a kernel: placeholders, and scalars behind them.
    arguments : list
        The Relax values that these stand for.
    outputs : list of Tensor

    With `narrow`, static extents are int32, as te.placeholder makes them of Python's ints: te.scan
    takes no others.
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
        positional = self._given(args)
        results = function(*positional, **{name: self._given(v) for name, v in keywords.items()})
        returned_sequence = isinstance(results, list | tuple | tvm_ffi.Array)
        self.outputs = list(results) if returned_sequence else [results]
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
        """The placeholder, extent or plain value that the function is given for an argument."""
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
        """A new parameter for a Relax tensor."""
        ty = argument.ty
        if not has_shape(ty):
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
        """A new parameter for a scalar variable."""
        parameter = tirx.Var(argument.name, str(argument.ty))
        self.parameters.append(parameter)
        self.arguments.append(argument)
        return parameter

    def _extent(self, extent: Any) -> Any:
        """An extent of the caller's in terms of variables of this object."""

        if isinstance(extent, tirx.IntImm) and self._narrow and int(extent) < 2**31:
            return tirx.IntImm("int32", int(extent))

        def renamed(var: Any) -> Any:
            return self._own.setdefault(var, tirx.Var(var.name, str(var.ty)))

        return tvm_ffi.structural_map(extent, (tvm.ir.Var, renamed))

    def _outside(self, extent: Any) -> Any:
        """An extent of a result in terms of the caller's variables."""
        if isinstance(extent, tirx.IntImm):
            return int(extent)
        outer_of = {identity(inner): outer for outer, inner in self._own.items()}
        return tvm_ffi.structural_map(
            extent, (tvm.ir.Var, lambda var: outer_of.get(identity(var), var))
        )

    def _add_sizes(self) -> None:
        """Add a scalar parameter for each variable in use that no parameter defines.

        A placeholder defines those variables that are extents of it, but not those of an extent
        such as n + 1.
        """
        defined = [p for p in self.parameters if isinstance(p, tvm.ir.Var)]
        for parameter in self.parameters:
            if isinstance(parameter, te.Tensor):
                defined += [extent for extent in parameter.shape if isinstance(extent, tvm.ir.Var)]
        defined_ids = {identity(var) for var in defined}
        for var in free_variables(*self.outputs):
            if identity(var) not in defined_ids:
                self.parameters.append(var)
                self.arguments.append(self._outside(var))


def _refused(argument: relax.Expr) -> str:
    """The message on an argument that no te.Tensor can stand for: what to give in its place."""
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
