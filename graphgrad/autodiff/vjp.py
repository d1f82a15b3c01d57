"""The public transforms of a module: `vjp`, on which everything else is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from ..errors import NotDifferentiableError
from ..ir.inline import inline_calls
from ..ir.program import Program
from ..ir.tensor import Emitter
from .accumulate import Accumulators, GradReq, leaves, unique_name
from .activity import Wrt, select
from .nested import float_types, shaped_like
from .reverse import Gradients


def vjp(
    mod: tvm.IRModule,
    func: str = "main",
    wrt: Wrt = None,
    grad_req: GradReq = "write",
    rules: str = "auto",
) -> tvm.IRModule:
    """Add to a module the vector-Jacobian product of one of its functions.

    Parameters
    ----------
    mod : IRModule
    func : str
        Name of a Relax function that returns a tensor or a (nested) tuple of tensors.
    wrt : names or variables, optional
        What to differentiate with respect to: parameters, or any value bound in the function, by
        name or as the Relax variable. Default: every parameter that is a float tensor, in order.
    grad_req : "write", "add" or "null"; or a sequence or mapping of those
        For all entries of `wrt`, one for each in order, or by name (those left out are written).
        A gradient is a new value, or the sum with an accumulator that is one more parameter, or it
        is neither computed nor returned.
    rules : "auto" or "derived"
        The user's rules, then graphgrad's, then what is derived from an op's tensor expression; or
        all but graphgrad's.

    Returns
    -------
    IRModule
        The module with ``<func>_vjp(*args, *cotangents, *accumulators) -> (outputs, gradients)``
        added: one cotangent for each float output, in order and of its type; one accumulator for
        each ``"add"``, in the order of `wrt`; `outputs` as `func` returns them; `gradients` a tuple
        with one value for each entry of `wrt` that is not ``"null"``, of its type. It is ordinary,
        pure Relax and can be differentiated again; parameters that are added have new names.
        Compiled by `graphgrad.compile` it overwrites
        the accumulators where that is safe: the sums are then returned in their memory, and their
        old values are gone.

    Raises
    ------
    ArgumentError
        Unknown function, name or argument value.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    NotDifferentiableError
        An entry of `wrt` is no float tensor, or no output is.

    Examples
    --------
    >>> mod2 = gg.vjp(mod, "main", wrt=["weight"])
    >>> ex = gg.compile(mod2)
    """
    program = inline_calls(mod, func, rules)
    return vjp_of_program(program, select(program, wrt), grad_req, mod)


def vjp_of_program(
    program: Program,
    wrt: Sequence[Any],
    grad_req: GradReq = "write",
    mod: tvm.IRModule | None = None,
) -> tvm.IRModule:
    """Add to a module the vector-Jacobian product of a program; see `vjp`.

    Parameters
    ----------
    program : Program
    wrt : sequence of variables of the program
    grad_req : "write", "add" or "null"; or a sequence or mapping of those
    mod : IRModule, optional
        The module to add it to; by default, one of the kernels that the program may call.

    Raises
    ------
    ArgumentError, MissingGradientError, NotDifferentiableError
    """
    taken = [param.name for param in program.params]
    accumulators = Accumulators(wrt, grad_req, taken)
    cotangents = cotangent_params(program, taken)
    derivative = Gradients(program, accumulators.wrt)

    def body(emitter: Emitter) -> Any:
        remaining = iter(cotangents)
        seed = shaped_like(program.result.ty, lambda ty: emitter.lift(next(remaining)))
        result, gradients = derivative.emit(emitter, seed)
        return result, accumulators.added(emitter, gradients)

    params = [*program.params, *cotangents, *accumulators.params]
    name = f"{program.name}_vjp"
    written = derivative.write(name, params, body, mod)
    return accumulators.donated(written, name, leaves(program.result.ty))


def cotangent_params(program: Program, taken: list[str]) -> list[Any]:
    """A new parameter for the cotangent of each float tensor that a program returns.

    Parameters
    ----------
    program : Program
    taken : list of str
        Names that they must not have; it is extended by theirs.

    Raises
    ------
    NotDifferentiableError
        It returns none.
    """
    types = list(float_types(program.result.ty))
    if not types:
        raise NotDifferentiableError(
            f"{program.name!r} returns no float tensor, so it has no gradient"
        )
    names = ["ct"] if len(types) == 1 else [f"ct_{index}" for index in range(len(types))]
    return [relax.Var(unique_name(name, taken), ty) for name, ty in zip(names, types, strict=True)]
