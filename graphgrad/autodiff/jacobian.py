"""Jacobians: the products with all basis vectors at once, by whichever mode has fewer of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import tvm
from tvm import relax

from ..errors import ArgumentError
from ..ir.calls import result_types
from ..ir.inline import inline_calls
from ..ir.program import Program, emit_program, substitute
from ..ir.tensor import Emitter, Tensor, type_shape
from ..ir.write import new_program, write_beside
from ..ops import functional as op
from .activity import Wrt, has_cotangent, select
from .batching import batch_program, with_axis
from .forward import Tangents, floats_of
from .nested import at_path, member
from .reverse import gradient_program

Mode = Literal["auto", "fwd", "rev"]


def jacobian_of_module(
    mod: tvm.IRModule, func: str, wrt: Wrt, of: int | None, mode: Mode, rules: str
) -> tvm.IRModule:
    """Add to a module the Jacobian of one of its functions; see `graphgrad.jacobian`."""
    program = inline_calls(mod, func, rules)
    types = result_types(program.result.ty)
    floats = [
        index
        for index, ty in enumerate(types)
        if isinstance(ty, relax.TensorType) and has_cotangent(ty)
    ]
    chosen = of if of is not None else (floats[0] if floats else None)
    if chosen not in floats or isinstance(chosen, bool):
        raise ArgumentError(
            f"of={of!r}: {func!r} returns float tensors as its results {floats}, counted from 0; "
            "give one of these numbers"
        )
    path = (chosen,) if isinstance(program.result.ty, relax.TupleType) else ()
    return jacobian_of_program(program, select(program, wrt), path, mode, mod)


def jacobian_of_program(
    program: Program,
    wrt: Sequence[Any],
    of: Sequence[int],
    mode: Mode = "auto",
    mod: tvm.IRModule | None = None,
) -> tvm.IRModule:
    """Add to a module the Jacobian of a result of a program.

    Parameters
    ----------
    program : Program
    wrt : sequence of variables of the program, tensors
    of : sequence of int
        Where the result is: its positions in nested tuples, outermost first.
    mode : "auto", "fwd" or "rev"
    mod : IRModule, optional
        The module to add it to; by default, one of the kernels that the program may call.

    Returns
    -------
    IRModule
        With ``<name>_jacobian(*args) -> (outputs, jacobians)``: of each entry of `wrt` a tensor
        whose first axes are those of the result, and whose last are those of the entry.

    Raises
    ------
    ArgumentError
        The shapes are not known, or `mode` is none of these.
    MissingGradientError, NotDifferentiableError, RuleError
    """
    ty = member(program.result.ty, of)
    shapes = [_static_shape(var.name, var.ty) for var in wrt]
    of_shape = _static_shape("the result", ty)
    check_mode(mode)
    inputs, outputs = sum(map(math.prod, shapes)), math.prod(of_shape)
    is_forward = mode == "fwd" or (mode == "auto" and inputs < outputs)
    rows = _rows_forward if is_forward else _rows_reverse

    def body(emitter: Emitter) -> Any:
        outputs, jacobians = rows(emitter, program, wrt, of, ty)
        whole = [
            op.reshape(jacobian, [*of_shape, *shape])
            for jacobian, shape in zip(jacobians, shapes, strict=True)
        ]
        return outputs, tuple(whole)

    return write_beside(program, "jacobian", program.params, body, mod)


def check_mode(mode: Any) -> None:
    """Raise `ArgumentError` unless a mode is one of `Mode`."""
    if mode not in ("auto", "fwd", "rev"):
        raise ArgumentError(f"mode={mode!r}: expected 'auto', 'fwd' or 'rev'")


def _static_shape(name: str, ty: Any) -> list[int]:
    """The shape of a tensor type.

    Raises
    ------
    ArgumentError
        It is no tensor of known extents.
    """
    shape = type_shape(ty) if isinstance(ty, relax.TensorType) else [None]
    if not all(isinstance(extent, int) for extent in shape):
        raise ArgumentError(
            f"{name} has type {ty}: a Jacobian has a row for each element, so give the extents "
            "values, by relax.transform.BindSymbolicVars, or shapes= of from_onnx"
        )
    return [*shape]


def _rows_reverse(
    emitter: Emitter, program: Program, wrt: Sequence[Any], of: Sequence[int], ty: Any
) -> tuple[Any, list[Tensor]]:
    """The outputs, and the gradients of each element of a result: (elements, \\*shape) each."""
    cotangent = relax.Var("ct", ty)

    def seed(inner: Emitter) -> Any:
        return at_path(program.result.ty, of, inner.lift(cotangent))

    gradient = gradient_program(program, wrt, [cotangent], seed)
    return _all_rows(emitter, gradient, cotangent)


def _rows_forward(
    emitter: Emitter, program: Program, wrt: Sequence[Any], of: Sequence[int], ty: Any
) -> tuple[Any, list[Tensor]]:
    """The outputs, and the tangents along each element: (\\*shape of the result, elements) each."""
    outputs, jacobians = None, []
    for var in wrt:
        seed = relax.Var("tangent", var.ty)
        derivative = Tangents(program, [var])

        def body(inner: Emitter, derivative: Any = derivative, seed: Any = seed) -> Any:
            result, tangent = derivative.emit(inner, [inner.lift(seed)])
            for index in of:
                tangent = None if tangent is None else tangent[index]
            return result, tuple(floats_of(inner, tangent, ty))

        forward = new_program(program, program.name, [*program.params, seed], body)
        outputs, (rows,) = _all_rows(emitter, forward, seed)
        jacobians.append(op.permute_dims(rows, [*range(1, rows.ndim), 0]))
    return outputs, jacobians


def _all_rows(emitter: Emitter, program: Program, seed: Any) -> tuple[Any, list[Tensor]]:
    """Emit a program for all basis vectors in the place of its last parameter.

    Returns
    -------
    outputs : relax expression
        The first member of its result, which does not depend on the parameter.
    rows : list of Tensor
        The members of the second, each with an axis for the basis vectors in front.
    """
    shape, dtype = type_shape(seed.ty), str(seed.ty.dtype)
    count = math.prod(shape)
    batched = batch_program(program, [seed], count)
    basis = emitter.emit(relax.op.eye(count, dtype=dtype))
    arguments = [*batched.params[:-1], op.reshape(basis, [count, *shape]).expr]
    environment = emit_program(batched, emitter.builder, arguments)
    outputs, rows = substitute(batched.result, environment).fields
    return outputs, [
        with_axis(emitter.lift(row), count, old)
        for row, old in zip(rows.fields, program.result.ty.fields[1].fields, strict=True)
    ]
