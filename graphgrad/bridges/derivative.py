"""Derivatives of a program, to any order, by what they are taken of and with respect to.

A derivative is a path of steps from the function itself, which is the empty path. A step takes the
vector-Jacobian product: its function takes the arguments of the one before, then the cotangents of
some of its results, and returns the gradients of some of its arguments. All are counted flat.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

from tvm import relax

from ..autodiff.accumulate import unique_name
from ..autodiff.activity import has_cotangent
from ..autodiff.nested import shaped_like
from ..autodiff.reverse import Gradients
from ..ir.program import Program
from ..ir.tensor import Emitter
from ..ir.write import new_program

Step = tuple[tuple[int, ...], tuple[int, ...]]
"""Positions of the arguments that are differentiated, and of the results that have cotangents."""

Derivative = tuple[Step, ...]

ITSELF: Derivative = ()


Part = Literal["whole", "forward", "backward"]
"""What is computed of a derivative: itself; or what its last step is taken of, and with it what is
kept for that step; or the step, from what was kept (`residuals`)."""


@cache
def to_text(derivative: Derivative, part: Part = "whole") -> str:
    """A derivative as an argument of an op, whose arguments are plain values."""
    return json.dumps([part, derivative])


@cache
def from_text(text: str) -> tuple[Part, Derivative]:
    """The part and derivative of a text that `to_text` returned."""
    part, steps = json.loads(text)
    return part, tuple((tuple(wrt), tuple(cotangents)) for wrt, cotangents in steps)


def flat_types(ty: Any) -> list[Any]:
    """The types of the tensors that a value of a type consists of, in order."""
    if isinstance(ty, relax.TupleType):
        return [leaf for item in ty.fields for leaf in flat_types(item)]
    return [ty]


def differentiate(program: Program, step: Step) -> Program:
    """The program of a vector-Jacobian product alone: the gradients, without the results.

    Parameters
    ----------
    program : Program
        Not changed.
    step : Step

    Raises
    ------
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    """
    return _with_gradients(program, step, lambda result, gradients: gradients)


def gradients_behind(program: Program, step: Step) -> Program:
    """The program of the results, in a row, and of the gradients behind them; see `differentiate`.

    Raises
    ------
    MissingGradientError
    """
    return _with_gradients(program, step, lambda result, gradients: [*result, *gradients])


def _with_gradients(
    program: Program, step: Step, returned: Callable[[list[Any], list[Any]], list[Any]]
) -> Program:
    """A program with further parameters, the cotangents, and what is made of both results."""
    wrt, with_cotangents = step
    types = flat_types(program.result.ty)
    taken = [param.name for param in program.params]
    cotangents = {
        position: relax.Var(unique_name(f"ct_{position}", taken), types[position])
        for position in with_cotangents
    }
    floats = [position for position, ty in enumerate(types) if has_cotangent(ty)]
    derivative = Gradients(program, [program.params[position] for position in wrt])

    def body(emitter: Emitter) -> Any:
        remaining = iter(floats)
        seed = shaped_like(program.result.ty, lambda _: cotangents.get(next(remaining)))
        result, gradients = derivative.emit(emitter, _lifted(emitter, seed))
        return tuple(returned(leaves_of(emitter.builder, result), gradients))

    params = [*program.params, *cotangents.values()]
    return new_program(program, program.name, params, body)


def leaves_of(builder: relax.BlockBuilder, value: Any) -> list[Any]:
    """The tensors of a nested tuple, in order, as variables or constants."""
    if not isinstance(value.ty, relax.TupleType):
        return [value]
    if isinstance(value, relax.Tuple):
        fields = list(value.fields)
    else:
        count = len(value.ty.fields)
        fields = [builder.emit(relax.TupleGetItem(value, index)) for index in range(count)]
    return [leaf for field in fields for leaf in leaves_of(builder, field)]


def _lifted(emitter: Emitter, seed: Any) -> Any:
    """A seed of variables, nested, as one of `Tensor`s; None stays."""
    if isinstance(seed, Sequence):
        return [_lifted(emitter, part) for part in seed]
    return None if seed is None else emitter.lift(seed)
