"""Activity: which bindings need a cotangent, and which of them have no gradient rule.

A binding is *active* if it depends, through ops that have derivatives, on a variable that is
differentiated with respect to, and an output depends on it. Rules are looked up for active bindings
only. All that have none are reported together, before anything is written.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ..errors import ArgumentError, MissingGradientError, NotDifferentiableError
from ..ir.branches import branch_programs
from ..ir.calls import callee
from ..ir.kernel_names import given_name, loop_carries
from ..ir.program import Program, variables_in
from ..ir.provenance import read
from ..ir.tensor import is_float
from ..registry.rule import Rule, find, find_function
from .derive import derive_rule
from .loop_rules import of_steps
from .overwriting import overwriting
from .te_gradients import te_gradient_rule
from .written_out import written_out

Wrt = str | Any | Sequence[str | Any] | None
"""The values to differentiate with respect to: one name or variable, or several.

None means every float parameter."""


def has_cotangent(ty: Any) -> bool:
    """Whether values of a type have cotangents: float tensors, and tuples with one in them."""
    if isinstance(ty, relax.TensorType):
        return is_float(str(ty.dtype))
    if isinstance(ty, relax.TupleType):
        return any(has_cotangent(field) for field in ty.fields)
    return False


def is_differentiable(ty: Any) -> bool:
    """Whether values of a type have gradients: float tensors, and tuples of nothing else."""
    if isinstance(ty, relax.TupleType):
        return len(ty.fields) > 0 and all(map(is_differentiable, ty.fields))
    return isinstance(ty, relax.TensorType) and has_cotangent(ty)


def check_target(var: Any) -> None:
    """Raise unless a variable is a float tensor, or a tuple of those.

    Raises
    ------
    NotDifferentiableError
    """
    if not is_differentiable(var.ty):
        raise NotDifferentiableError(
            f"{var.name} has type {var.ty}: only float tensors have gradients"
        )


def select(program: Program, wrt: Wrt) -> list[Any]:
    """The variables of a program that `wrt` names.

    Raises
    ------
    ArgumentError
        A name is unknown, ambiguous or given twice, or nothing is left to differentiate.
    NotDifferentiableError
        A value is no float tensor.
    """
    if wrt is None:
        variables = [
            param
            for param in program.params
            if isinstance(param.ty, relax.TensorType) and has_cotangent(param.ty)
        ]
        if not variables:
            raise ArgumentError(_no_tensor_parameter(program))
        return variables
    keys = list(wrt) if isinstance(wrt, Sequence) and not isinstance(wrt, str) else [wrt]
    variables = [_variable(program, key) for key in keys]
    if len(set(variables)) != len(variables) or not variables:
        raise ArgumentError(f"wrt={keys}: give at least one value, and each once")
    for var in variables:
        check_target(var)
    return variables


def _no_tensor_parameter(program: Program) -> str:
    """What a function without a parameter that is a float tensor has, and what to do."""
    tuples = [
        param.name
        for param in program.params
        if isinstance(param.ty, relax.TupleType) and is_differentiable(param.ty)
    ]
    if tuples:
        return (
            f"{program.name!r} has no parameter that is a float tensor, but tuples of those: name "
            f"what to differentiate with respect to, as in wrt={tuples}; the gradient is a tuple"
        )
    types = ", ".join(f"{param.name}: {param.ty}" for param in program.params) or "nothing"
    return (
        f"{program.name!r} has no parameter that is a float tensor; it takes {types}. Name a float "
        "tensor that it computes with wrt=..., or convert the parameter"
    )


def _variable(program: Program, key: Any) -> Any:
    try:
        return program.variable(key)
    except KeyError:
        names = [var.name for var in program.variables()]
        label = key if isinstance(key, str) else key.name
        suggestions = difflib.get_close_matches(label, names, n=3) or names[:8]
        raise ArgumentError(
            f"{program.name!r} has no value {label!r} to differentiate with respect to, or it is a "
            f"constant or known at compile time; did you mean one of {suggestions}?"
        ) from None


def _can_depend(ty: Any) -> bool:
    """Whether derivatives can pass through a value of a type.

    They can through opaque values (closures, objects, tensors of unknown dtype). To skip these
    would make a gradient silently zero; so a rule is looked up, and an error raised without one.
    """
    if isinstance(ty, relax.TupleType):
        return any(_can_depend(field) for field in ty.fields)
    if isinstance(ty, relax.TensorType):
        return ty.dtype is None or is_float(str(ty.dtype))
    if isinstance(ty, tvm.ir.PrimType):
        return is_float(str(ty))
    return not isinstance(ty, relax.ShapeType)


def op_name(value: Any) -> str:
    """The name under which a binding's value is looked up and reported."""
    if isinstance(value, relax.If):
        return "relax.If"
    operator = value.op
    if isinstance(operator, tvm.ir.Op):
        called = callee(value)
        return f"{operator.name}({called})" if called else str(operator.name)
    if isinstance(operator, relax.ExternFunc):
        return f"packed function {operator.global_symbol}"
    return f"call of {operator}"


def stops_derivatives(program: Program, value: Any) -> bool:
    """Whether a binding's value is a call of an op that was declared not differentiable."""
    if not isinstance(value, relax.Call):
        return False
    rule = _registered(program, value)
    return rule is not None and rule.kind == "nondifferentiable"


@dataclass
class Activity:
    """Which variables carry cotangents, and the rule of each active call.

    Attributes
    ----------
    varied : set of relax.Var
        The variables that depend on a variable that is differentiated with respect to.
    needed : set of relax.Var
        The varied variables that an output depends on, so that derivatives pass through them.
    rules : dict
        From the variable that an active call is bound to, to its rule.
    missing : dict
        From the variable that an active call without a rule is bound to, to the name of its op;
        also from that of a call which overwrites memory that rules read.
    reasons : dict
        From each variable in `missing` to the reason.
    """

    varied: set[Any]
    needed: set[Any]
    rules: dict[Any, Rule]
    missing: dict[Any, str]
    reasons: dict[Any, str]


def analyze(program: Program, wrt: Iterable[Any]) -> Activity:
    """Find the active bindings of a program and their rules.

    Parameters
    ----------
    program : Program
    wrt : variables of the program

    Raises
    ------
    MissingGradientError
        Active ops have no rule, or in-place calls overwrite what gradients read; lists every one of
        them.
    """
    activity = survey(program, wrt)
    if activity.missing:
        raise _missing_error(program, activity)
    return activity


def survey(program: Program, wrt: Iterable[Any]) -> Activity:
    """Find the active bindings of a program, their rules, and the ops without a rule."""
    varied = _varied(program, set(wrt))
    rules: dict[Any, Rule] = {}
    missing: dict[Any, str] = {}
    reasons: dict[Any, str] = {}
    needed = {v for v in variables_in(program.result) if v in varied and has_cotangent(v.ty)}
    # Last first: all readers of a variable are visited before the binding that makes it.
    for var, value in reversed(program.bindings):
        if var not in needed or stops_derivatives(program, value):
            continue
        reads = [source for source in variables_in(value) if source in varied]
        if not reads:
            continue
        needed.update(reads)
        if isinstance(value, (relax.Call, relax.If)):
            try:
                rules[var] = _rule(program, var, value)
            except MissingGradientError as error:
                missing[var] = op_name(value)
                rule = read(value.span).rule
                where = f"; the rule at {rule} computes its gradient with it" if rule else ""
                reasons[var] = f"{error}{where}"
    # A composite is replaced by other ops, and the program is then surveyed again.
    composites = {var for var, rule in rules.items() if rule.kind == "composite"}
    for var, call, argument in overwriting(program, {*rules, *missing}):
        if var not in composites and var not in missing:
            missing[var] = op_name(call)
            reasons[var] = (
                f"{missing[var]} overwrites {argument.name}, which gradients read afterwards; call "
                "the function out of place, by call_tir or call_dps_packed"
            )
    return Activity(varied, needed, rules, missing, reasons)


def _rule(program: Program, var: Any, value: Any) -> Rule:
    """The rule of an active binding: a registered one, else one that is derived.

    Raises
    ------
    MissingGradientError
        There is none; the error says why.
    """
    rule = _registered(program, value)
    if rule is None or not rule.serves(program.rules):
        rule = te_gradient_rule(value)
    if rule is not None:
        return rule
    if var not in program.derived:
        if isinstance(value, relax.If):
            program.derived[var] = _rule_of_branches(program, value)
            return program.derived[var]
        rule = derive_rule(value, program.kernels)
        if rule.kind == "composite":
            _check_inside(rule, var, value, program.rules)
        program.derived[var] = rule
    return program.derived[var]


def _registered(program: Program, value: Any) -> Rule | None:
    """The registered rule of a binding's value; None if there is none.

    A rule for the function that it calls by name comes before one for its op.
    """
    if not isinstance(value, relax.Call):
        return None
    kernel = _kernel(program, value)
    name = given_name(kernel) or callee(value)
    rule = find_function(name) if name and not _is_own_kernel(value) else None
    if rule is not None:
        carries = loop_carries(kernel)
        return rule if carries is None else of_steps(rule, carries)
    return find(value.op.name) if isinstance(value.op, tvm.ir.Op) else None


def _kernel(program: Program, call: Any) -> Any:
    """The kernel that is called; None if it is no kernel of the program."""
    target = call.args[0] if callee(call) and call.args else None
    return program.kernels.get(target) if isinstance(target, tvm.ir.GlobalVar) else None


def _is_own_kernel(call: Any) -> bool:
    """Whether graphgrad made the kernel that is called.

    A user's rule for a kernel's name must not apply to it, as the name may be equal by chance.
    """
    is_kernel = any(isinstance(argument, tvm.ir.GlobalVar) for argument in call.args[:1])
    return is_kernel and read(call.span).origin not in (None, "user")


def _rule_of_branches(program: Program, value: relax.If) -> Rule:
    """The rule of an If, after a check that the ops in its branches have gradients.

    The rule has no function, because the reverse sweep itself differentiates branches.

    Raises
    ------
    MissingGradientError
    """
    for branch in branch_programs(program, value):
        wrt = [param for param in branch.params if has_cotangent(param.ty)]
        _refuse_missing(survey(branch, wrt), "in a branch, ")
    return Rule("relax.If", "general", None, origin="derived")


def _check_inside(rule: Rule, var: Any, value: Any, rules: str) -> None:
    """Raise if an op in the form that a derived composite rule gives a call has no gradient."""
    expansion = written_out(rule, var, value)
    params = list(dict.fromkeys(variables_in(value)))
    inner = Program(op_name(value), params, expansion.bindings, var, rules=rules)
    inner.kernels = expansion.kernels
    _refuse_missing(survey(inner, [param for param in params if has_cotangent(param.ty)]))


def _refuse_missing(activity: Activity, where: str = "") -> None:
    """Raise if ops of an inner program have no gradient; the error names all of them."""
    reasons = [f"{name}: {activity.reasons[var]}" for var, name in activity.missing.items()]
    if reasons:
        raise MissingGradientError(where + "; ".join(dict.fromkeys(reasons)))


def _varied(program: Program, varied: set[Any]) -> set[Any]:
    """The variables that depend on some variables; the set is extended."""
    for var, value in program.bindings:
        if var in varied or not _can_depend(var.ty) or stops_derivatives(program, value):
            continue
        if any(source in varied for source in variables_in(value)):
            varied.add(var)
    return varied


def location(var: Any, value: Any) -> str:
    """The name of a binding in messages: that of its ONNX node, else that of its variable."""
    return read(value.span).node or str(var.name)


def _missing_error(program: Program, activity: Activity) -> MissingGradientError:
    locations: dict[str, list[str]] = defaultdict(list)
    reasons: dict[str, list[str]] = defaultdict(list)
    for var, value in program.bindings:
        if var in activity.missing:
            name = activity.missing[var]
            locations[name].append(location(var, value))
            reasons[name].append(activity.reasons[var])
    rows = sorted(locations.items())
    lines = [
        "\n    ".join(
            [f"  {name} ×{len(locations)}: {', '.join(locations)}", *dict.fromkeys(reasons[name])]
        )
        for name, locations in rows
    ]
    return MissingGradientError(
        f"{len(rows)} op(s) on the way from the differentiated values to the outputs of "
        f"{program.name!r} have no gradient:\n"
        + "\n".join(lines)
        + "\nRegister a rule with graphgrad.register_gradient, declare an op with "
        "graphgrad.nondifferentiable, or differentiate with respect to fewer values.",
        rows,
    )
