"""Writing composite ops out: the form in which the sweep differentiates them.

A composite rule states an op in terms of ops that have rules. The calls on the way are replaced by
that statement in the primal program, so that nothing is computed twice, and derivatives exist to
whatever order the ops underneath have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from ..errors import RuleError
from ..exclusive import BLOCK_BUILDER
from ..ops.tensor import Emitter, Tensor, same_shape
from ..registry.attributes import Attributes
from ..registry.rule import Rule
from .activity import Activity, analyse, variables_in
from .program import Program


def expand(program: Program, wrt: Sequence[Any]) -> tuple[Program, Activity]:
    """Return the program with its active composite calls written out, and its activity.

    Parameters
    ----------
    program : Program
        Not changed.
    wrt : variables of the program
        They stay variables of the returned one.

    Raises
    ------
    MissingGradientError
        Active ops have no rule.
    RuleError
        A composite rule returned values that are not those of its op.
    """
    activity = analyse(program, wrt)
    while composites := {v: r for v, r in activity.rules.items() if r.kind == "composite"}:
        bindings: list[tuple[Any, Any]] = []
        for var, value in program.bindings:
            if var in composites:
                bindings += _written_out(composites[var], var, value)
            else:
                bindings.append((var, value))
        program = replace(program, bindings=bindings)
        activity = analyse(program, wrt)
    return program, activity


def _written_out(rule: Rule, var: Any, call: Any) -> list[tuple[Any, Any]]:
    """Return the bindings of a call's composite form; the last binds `var`."""
    builder = relax.BlockBuilder()
    emitter = Emitter(builder)
    sources = list(dict.fromkeys(variables_in(call)))
    with BLOCK_BUILDER, builder.function("composite", sources):
        with emitter.at(call.span, var.name):
            inputs = [emitter.lift(argument) for argument in call.args]
            keyword = {"attrs": Attributes(call.attrs)} if rule.takes_attributes else {}
            assert rule.function is not None
            value = _expression(rule, var.ty, rule.function(*inputs, **keyword))
        builder.emit_func_output(value)
    body = builder.get()["composite"].body
    bindings = [binding for block in body.blocks for binding in block.bindings]
    return [*((binding.var, _bound(binding)) for binding in bindings), (var, body.body)]


def _bound(binding: Any) -> Any:
    return binding if isinstance(binding, relax.MatchCast) else binding.value


def _expression(rule: Rule, ty: Any, value: Any) -> Any:
    """Return what a composite rule gave as one expression, after checking its types."""
    if isinstance(ty, relax.TupleType):
        values = list(value) if isinstance(value, list | tuple) else [value]
        if len(values) != len(ty.fields):
            raise RuleError(
                f"{rule.location}: the composite of {rule.op} returned {len(values)} value(s) for "
                f"{len(ty.fields)} output(s)"
            )
        return relax.Tuple(
            [_expression(rule, t, v) for t, v in zip(ty.fields, values, strict=True)]
        )
    if not isinstance(value, Tensor):
        raise RuleError(
            f"{rule.location}: the composite of {rule.op} returned {type(value).__name__}; an "
            "output is a Tensor"
        )
    expected = [int(d) if isinstance(d, tvm.tirx.IntImm) else d for d in ty.shape]
    if not same_shape(value.shape, expected) or value.dtype != str(ty.dtype):
        raise RuleError(
            f"{rule.location}: the composite of {rule.op} returned {value.dtype} of shape "
            f"{value.shape} for an output {ty.dtype} of shape {expected}"
        )
    return value.expr
