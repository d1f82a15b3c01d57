"""What needs a cotangent, and which ops on the way have no gradient.

A binding is *active* if it depends on a variable that is differentiated, through ops that have
derivatives, and an output depends on it. Only active bindings are asked for a rule, and all that
have none are reported together, before any work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ..errors import MissingGradientError
from ..ops.tensor import is_float
from ..provenance import read
from ..registry.rule import Rule, find
from .program import Program


def has_cotangent(ty: Any) -> bool:
    """Whether values of a type have cotangents: float tensors, and tuples with one in them."""
    if isinstance(ty, relax.TensorType):
        return is_float(str(ty.dtype))
    if isinstance(ty, relax.TupleType):
        return any(has_cotangent(field) for field in ty.fields)
    return False


def _can_depend(ty: Any) -> bool:
    """Whether a value of a type can depend on a float tensor so that derivatives pass through it.

    Opaque values (closures, objects, tensors of unknown dtype) can: they must be asked for a rule,
    for to pass them over would be a silent zero.
    """
    if isinstance(ty, relax.TupleType):
        return any(_can_depend(field) for field in ty.fields)
    if isinstance(ty, relax.TensorType):
        return ty.dtype is None or is_float(str(ty.dtype))
    if isinstance(ty, tvm.ir.PrimType):
        return is_float(str(ty))
    return not isinstance(ty, relax.ShapeType)


def variables_in(expr: Any) -> Iterable[Any]:
    """Yield the variables that a binding's value reads as data."""
    if isinstance(expr, relax.Var):
        yield expr
    elif isinstance(expr, relax.Call):
        if isinstance(expr.op, relax.Var):
            yield expr.op
        for argument in expr.args:
            yield from variables_in(argument)
    elif isinstance(expr, relax.Tuple):
        for item in expr.fields:
            yield from variables_in(item)
    elif isinstance(expr, relax.TupleGetItem):
        yield from variables_in(expr.tuple_value)
    elif isinstance(expr, relax.MatchCast):
        yield from variables_in(expr.value)
    elif isinstance(expr, (relax.If, relax.Function)):
        yield from relax.analysis.free_vars(
            expr if isinstance(expr, relax.Function) else _as_sequence(expr)
        )


def _as_sequence(expr: Any) -> relax.SeqExpr:
    return relax.SeqExpr([], expr)


def op_name(value: Any) -> str:
    """Return the name under which a binding's value is looked up and reported."""
    if isinstance(value, relax.If):
        return "relax.If"
    operator = value.op
    if isinstance(operator, tvm.ir.Op):
        if operator.name.startswith("relax.call_tir") and value.args:
            return f"{operator.name}({value.args[0].name_hint})"
        return str(operator.name)
    if isinstance(operator, relax.ExternFunc):
        return f"packed function {operator.global_symbol}"
    return f"call of {operator}"


def stops_derivatives(value: Any) -> bool:
    """Whether a binding's value is a call of an op that was declared not differentiable."""
    if not isinstance(value, relax.Call):
        return False
    rule = find(op_name(value))
    return rule is not None and rule.kind == "nondifferentiable"


@dataclass
class Activity:
    """Which variables carry cotangents, and the rule of each active call.

    Attributes
    ----------
    varied : set of relax.Var
        Depends on a differentiated variable.
    needed : set of relax.Var
        Those of them that an output depends on, so that derivatives pass through.
    rules : dict
        Rule of each active call, by the variable that it is bound to.
    missing : dict
        Name of the op of each active call that has no rule, by the variable that it is bound to.
    """

    varied: set[Any]
    needed: set[Any]
    rules: dict[Any, Rule]
    missing: dict[Any, str]


def analyse(program: Program, wrt: Iterable[Any]) -> Activity:
    """Find the active bindings of a program and their rules.

    Parameters
    ----------
    program : Program
    wrt : variables of the program

    Raises
    ------
    MissingGradientError
        Active ops have no rule; lists every one of them.
    """
    activity = survey(program, wrt)
    if activity.missing:
        raise _missing_error(program, activity.missing)
    return activity


def survey(program: Program, wrt: Iterable[Any]) -> Activity:
    """Find the active bindings of a program, their rules, and what has none."""
    varied = _varied(program, set(wrt))
    rules: dict[Any, Rule] = {}
    missing: dict[Any, str] = {}
    needed = {v for v in variables_in(program.result) if v in varied and has_cotangent(v.ty)}
    for var, value in reversed(program.bindings):
        if var not in needed or stops_derivatives(value):
            continue
        reads = [source for source in variables_in(value) if source in varied]
        if not reads:
            continue
        needed.update(reads)
        if isinstance(value, (relax.Call, relax.If)):
            name = op_name(value)
            rule = find(name)
            if rule is None:
                missing[var] = name
            else:
                rules[var] = rule
    return Activity(varied, needed, rules, missing)


def _varied(program: Program, varied: set[Any]) -> set[Any]:
    for var, value in program.bindings:
        if var in varied or not _can_depend(var.ty) or stops_derivatives(value):
            continue
        if any(source in varied for source in variables_in(value)):
            varied.add(var)
    return varied


def place(var: Any, value: Any) -> str:
    """Return where a binding comes from: the name of its ONNX node, else of its variable."""
    return read(value.span).node or str(var.name)


def _missing_error(program: Program, missing: dict[Any, str]) -> MissingGradientError:
    places: dict[str, list[str]] = defaultdict(list)
    for var, value in program.bindings:
        if var in missing:
            places[missing[var]].append(place(var, value))
    rows = sorted(places.items())
    lines = [f"  {name} ×{len(places)}: {', '.join(places)}" for name, places in rows]
    return MissingGradientError(
        f"{len(rows)} op(s) on the way from the differentiated values to the outputs of "
        f"{program.name!r} have no gradient:\n"
        + "\n".join(lines)
        + "\nRegister a rule with graphgrad.register_gradient, declare an op with "
        "graphgrad.nondifferentiable, or differentiate with respect to fewer values.",
        rows,
    )
