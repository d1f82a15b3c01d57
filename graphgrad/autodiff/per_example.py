"""Gradients per example: those of many losses at once, each of one example, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from ..errors import ArgumentError, NotDifferentiableError
from ..ir.inline import inline_calls
from ..ir.program import Program, emit_program, substitute
from ..ir.tensor import Emitter, type_shape
from ..ir.write import write_beside
from ..ops import functional as op
from .activity import Wrt, has_cotangent, select
from .batching import batch_program, with_axis
from .nested import at_path, member
from .reverse import gradient_program


def per_example_of_module(
    mod: tvm.IRModule, func: str, wrt: Wrt, examples: Sequence[str] | None, count: int, rules: str
) -> tvm.IRModule:
    """Add to a module the gradients per example; see `graphgrad.per_example_grads`."""
    program = inline_calls(mod, func, rules)
    ty = program.result.ty
    if not isinstance(ty, relax.TensorType) or not has_cotangent(ty) or type_shape(ty):
        raise NotDifferentiableError(
            f"{func!r} returns {ty}; the gradient of an example is that of a float scalar, its loss"
        )
    chosen = select(program, wrt)
    if examples is None:
        varying = [param for param in program.params if param not in set(chosen)]
    else:
        varying = select(program, list(examples))
    return per_example_of_program(program, chosen, varying, count, (), mod)


def per_example_of_program(
    program: Program,
    wrt: Sequence[Any],
    examples: Sequence[Any],
    count: int,
    loss: Sequence[int],
    mod: tvm.IRModule | None = None,
    is_batch: bool = False,
) -> tvm.IRModule:
    """Add to a module the gradients of a program of one example, for many of them.

    Parameters
    ----------
    program : Program
    wrt : sequence of variables of the program
    examples : sequence of parameters of the program, tensors
        What each example has of its own.
    count : int
        How many examples there are.
    loss : sequence of int
        Where the loss is in the result, a float scalar: its positions in nested tuples.
    mod : IRModule, optional
        The module to add it to; by default, one of the kernels that the program may call.
    is_batch : bool
        Whether the program computes a batch of one example, the first axis of the parameters.

    Returns
    -------
    IRModule
        With ``<name>_per_example(*args) -> (losses, gradients)``. The examples lie along one more
        axis in front of `examples`, with `is_batch` along their first, and of all results.
    """
    both = [var.name for var in wrt if var in set(examples)]
    if both or not examples:
        raise ArgumentError(
            f"examples: {both or 'none is given'}; name the parameters that differ between "
            "examples, and others in wrt, of which each example has a gradient"
        )
    scalar = member(program.result.ty, loss)

    def seed(emitter: Emitter) -> Any:
        return at_path(program.result.ty, loss, emitter.full(1.0, [], str(scalar.dtype)))

    one = gradient_program(program, wrt, [], seed)
    many = batch_program(one, examples, count)
    params = list(many.params)
    if is_batch:
        varies = [param in set(examples) for param in program.params]
        params = [
            _without_axis(param) if of_example else param
            for param, of_example in zip(params, varies, strict=True)
        ]

    def body(emitter: Emitter) -> Any:
        arguments = [
            param if param is inner else op.reshape(emitter.lift(param), type_shape(inner.ty)).expr
            for param, inner in zip(params, many.params, strict=True)
        ]
        environment = emit_program(many, emitter.builder, arguments)
        outputs, gradients = substitute(many.result, environment).fields
        losses = emitter.lift(member(outputs, loss))
        return with_axis(losses, count, scalar), tuple(
            with_axis(emitter.lift(gradient), count, old)
            for gradient, old in zip(gradients.fields, one.result.ty.fields[1].fields, strict=True)
        )

    return write_beside(program, "per_example", params, body, mod)


def _without_axis(param: Any) -> relax.Var:
    """A parameter for a batch, in the place of one for batches of one example; a scalar stays."""
    count, *rest = type_shape(param.ty)
    return relax.Var(param.name, relax.TensorType([count, *rest[1:]], str(param.ty.dtype)))
