"""A gradient pass for pipelines that were written for TVM's ``relax.transform.Gradient``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from ..errors import ArgumentError, NotDifferentiableError
from ..ir.calls import drop_te_gradients, result_types
from ..ir.inline import inline_calls
from ..ir.program import Program
from ..ir.tensor import Emitter, type_shape
from .activity import has_cotangent, is_differentiable, select
from .reverse import Gradients
from .vjp import shaped_like


def Gradient(
    func_name: str,
    require_grads: Any | Sequence[Any] | None = None,
    target_index: int = 0,
    rules: str = "auto",
) -> tvm.ir.transform.Pass:
    """A drop-in for ``relax.transform.Gradient``.

    It adds ``<func_name>_adjoint(*params) -> (original result, gradients)`` to a module: the
    gradients of one scalar result, by graphgrad's rules. In it, ``call_tir_with_grad`` become
    ``call_tir``, as by TVM's pass, whose limits are lifted: several blocks, calls of other Relax
    functions, symbolic shapes, and a result that is any nested tuple.

    Parameters
    ----------
    func_name : str
    require_grads : relax.Var, str, or list of those, optional
        Parameters or values bound in the function; all parameters by default. A parameter that is
        no float tensor gets zeros, as from TVM's pass.
    target_index : int
        Which result is differentiated, where the function returns a tuple.
    rules : "auto" or "derived"
        See `graphgrad.vjp`.

    Raises
    ------
    GraphGradError
        When the pass runs: see `graphgrad.vjp`; and NotDifferentiableError, if the target is no
        float scalar.
    """

    def transform(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        return _add_adjoint(mod, func_name, require_grads, target_index, rules)

    return tvm.transform.module_pass(opt_level=0, name="graphgrad.Gradient")(transform)


def _add_adjoint(
    mod: tvm.IRModule, name: str, require_grads: Any, target_index: int, rules: str
) -> tvm.IRModule:
    """The module with ``<name>_adjoint`` added; see `Gradient`."""
    program = inline_calls(mod, name, rules)
    requested = list(program.params) if require_grads is None else None
    wrt = select(program, _differentiable(requested) if requested is not None else require_grads)
    _check_target(program, target_index)
    derivative = Gradients(program, wrt)

    def body(emitter: Emitter) -> Any:
        seed = _seed(emitter, program, target_index)
        result, gradients = derivative.emit(emitter, seed)
        gradient_of = dict(zip(wrt, gradients, strict=True))
        return result, tuple(
            gradient_of[var] if var in gradient_of else _zeros(emitter, var)
            for var in requested or wrt
        )

    adjoint = derivative.write(f"{name}_adjoint", program.params, body, mod)
    return drop_te_gradients(adjoint, f"{name}_adjoint")


def _differentiable(params: list[Any]) -> list[Any]:
    return [param for param in params if is_differentiable(param.ty)]


def _zeros(emitter: Emitter, param: Any) -> Any:
    """The zero gradient of a parameter that is no float tensor, as TVM's pass returns it."""
    if not isinstance(param.ty, relax.TensorType):
        raise NotDifferentiableError(
            f"parameter {param.name} has type {param.ty}, which has no gradient; leave it out of "
            "require_grads"
        )
    return emitter.full(0.0, type_shape(param.ty), str(param.ty.dtype))


def _check_target(program: Program, index: int) -> None:
    """Raise unless a result of a program is a float scalar."""
    types = result_types(program.result.ty)
    if not 0 <= index < len(types):
        raise ArgumentError(f"target_index={index}: {program.name!r} returns {len(types)} value(s)")
    ty = types[index]
    if not isinstance(ty, relax.TensorType) or not has_cotangent(ty) or type_shape(ty):
        raise NotDifferentiableError(
            f"result {index} of {program.name!r} has type {ty}; the target of a gradient is a "
            "float scalar (graphgrad.vjp takes any output, with a cotangent)"
        )


def _seed(emitter: Emitter, program: Program, index: int) -> Any:
    """The cotangent of a program's result: 1 for the target, none for other results."""
    ty = program.result.ty
    unit = emitter.full(1.0, [], str(result_types(ty)[index].dtype))
    if not isinstance(ty, relax.TupleType):
        return unit
    seed = shaped_like(ty, lambda _: None)
    seed[index] = unit
    return seed
