"""Hessian-vector products: forward mode over reverse mode.

The gradient is a program, and its tangent along a vector is the Hessian's product with that vector
(B. Pearlmutter, "Fast exact multiplication by the Hessian", 1994). No Hessian is formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from ..errors import ArgumentError
from ..ir.inline import inline_calls
from ..ir.program import Program
from ..ir.tensor import Emitter, type_shape
from ..ir.write import write_beside
from .accumulate import unique_name
from .activity import Wrt, select
from .forward import Tangents, floats_of
from .jvp import only_floats
from .nested import float_types, shaped_like
from .reverse import gradient_program
from .vjp import cotangent_params


def hvp_of_module(mod: tvm.IRModule, func: str, wrt: Wrt, rules: str) -> tvm.IRModule:
    """Add to a module the Hessian-vector product of one of its functions; see `graphgrad.hvp`."""
    program = inline_calls(mod, func, rules)
    types = list(float_types(program.result.ty))
    is_scalar = len(types) == 1 and not type_shape(types[0])
    return hvp_of_program(program, select(program, wrt), mod, is_scalar)


def hvp_of_program(
    program: Program,
    wrt: Sequence[Any],
    mod: tvm.IRModule | None = None,
    is_scalar: bool = False,
) -> tvm.IRModule:
    """Add to a module the Hessian-vector product of a program.

    Parameters
    ----------
    program : Program
    wrt : sequence of parameters of the program
    mod : IRModule, optional
        The module to add it to; by default, one of the kernels that the program may call.
    is_scalar : bool
        Whether the only float result is a scalar whose cotangent is 1, and so no parameter.

    Returns
    -------
    IRModule
        With ``<name>_hvp(*args, *cotangents, *vectors) -> (outputs, gradients, products)``.

    Raises
    ------
    ArgumentError
        An entry of `wrt` is computed in the program.
    MissingGradientError, NotDifferentiableError, RuleError
    """
    computed = [var.name for var in wrt if var not in set(program.params)]
    if computed:
        raise ArgumentError(
            f"wrt: {computed} are computed in {program.name!r}; a Hessian is that by parameters, "
            "which can be varied independently"
        )
    taken = [param.name for param in program.params]
    cotangents = [] if is_scalar else cotangent_params(program, taken)
    gradient = _gradient_program(program, wrt, cotangents)
    vectors = [relax.Var(unique_name(f"{var.name}_vector", taken), var.ty) for var in wrt]
    derivative = Tangents(gradient, wrt)

    def body(emitter: Emitter) -> Any:
        result, tangent = derivative.emit(emitter, [emitter.lift(vector) for vector in vectors])
        outputs, gradients = result.fields
        of_gradients = None if tangent is None else tangent[1]
        products = iter(floats_of(emitter, of_gradients, gradients.ty))
        return outputs, gradients, only_floats(gradients.ty, products)

    return write_beside(program, "hvp", [*gradient.params, *vectors], body, mod)


def _gradient_program(program: Program, wrt: Sequence[Any], cotangents: Sequence[Any]) -> Program:
    """The gradients for these cotangents of the float results; without any, for ones."""

    def seed(emitter: Emitter) -> Any:
        remaining = iter(cotangents)

        def of_type(ty: Any) -> Any:
            if cotangents:
                return emitter.lift(next(remaining))
            return emitter.full(1.0, type_shape(ty), str(ty.dtype))

        return shaped_like(program.result.ty, of_type)

    return gradient_program(program, wrt, cotangents, seed)
