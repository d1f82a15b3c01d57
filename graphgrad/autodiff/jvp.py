"""`jvp`: forward mode, for a function of a module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import relax

from ..errors import NotDifferentiableError
from ..ir.inline import inline_calls
from ..ir.program import Program
from ..ir.tensor import Emitter
from ..ir.write import write_beside
from .accumulate import unique_name
from .activity import Wrt, has_cotangent, select
from .forward import Tangents, floats_of
from .nested import float_types


def jvp(
    mod: tvm.IRModule, func: str = "main", wrt: Wrt = None, rules: str = "auto"
) -> tvm.IRModule:
    """Add to a module the Jacobian-vector product of one of its functions.

    Parameters
    ----------
    mod : IRModule
    func : str
        Name of a Relax function that returns a tensor or a (nested) tuple of tensors.
    wrt : names or variables, optional
        What to differentiate with respect to, as of `vjp`. A value that is bound in the function
        gets its tangent in addition to the one that flows to it from others.
    rules : "auto" or "derived"
        As of `vjp`.

    Returns
    -------
    IRModule
        The module with ``<func>_jvp(*args, *tangents) -> (outputs, output tangents)`` added: one
        tangent for each entry of `wrt`, in order and of its type; `outputs` as `func` returns them,
        and their tangents nested like them, without those outputs that are no floats. It is
        ordinary, pure Relax, and can be differentiated again, by `vjp` too; parameters that are
        added have new names.

    Raises
    ------
    ArgumentError
        Unknown function, name or argument value.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    NotDifferentiableError
        An entry of `wrt` is no float tensor, or no output is.
    RuleError
        A gradient rule of yours is not linear in its cotangents, so that none for tangents follows.

    Examples
    --------
    >>> mod2 = gg.jvp(mod, "main", wrt=["x"])
    >>> outputs, tangents = relax.VirtualMachine(gg.compile(mod2), tvm.cpu())["main_jvp"](x, w, dx)
    """
    program = inline_calls(mod, func, rules)
    return jvp_of_program(program, select(program, wrt), mod)


def jvp_of_program(
    program: Program, wrt: Sequence[Any], mod: tvm.IRModule | None = None
) -> tvm.IRModule:
    """Add to a module the Jacobian-vector product of a program; see `jvp`.

    Parameters
    ----------
    program : Program
    wrt : sequence of variables of the program
    mod : IRModule, optional
        The module to add it to; by default, one of the kernels that the program may call.

    Raises
    ------
    ArgumentError, MissingGradientError, NotDifferentiableError, RuleError
    """
    if not list(float_types(program.result.ty)):
        raise NotDifferentiableError(
            f"{program.name!r} returns no float tensor, so it has no tangent"
        )
    taken = [param.name for param in program.params]
    seeds = [relax.Var(unique_name(f"{var.name}_tangent", taken), var.ty) for var in wrt]
    derivative = Tangents(program, wrt)

    def body(emitter: Emitter) -> Any:
        result, tangent = derivative.emit(emitter, [emitter.lift(seed) for seed in seeds])
        floats = iter(floats_of(emitter, tangent, program.result.ty))
        return result, only_floats(program.result.ty, floats)

    return write_beside(program, "jvp", [*program.params, *seeds], body, mod)


def only_floats(ty: Any, floats: Iterator[Any]) -> Any:
    """The tensors of an iterator, nested like the float tensors in a value of a type."""
    if isinstance(ty, relax.TupleType):
        return tuple(only_floats(item, floats) for item in ty.fields if has_cotangent(item))
    return next(floats)
