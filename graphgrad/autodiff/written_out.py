"""A composite op in the place of its call: the bindings of the form that its rule states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from ..errors import RuleError
from ..exclusive import BLOCK_BUILDER
from ..ops.calls import data_of
from ..ops.tensor import Emitter, Tensor, same_shape
from ..provenance import with_origin
from ..registry.attributes import Attributes
from ..registry.rule import Rule
from .program import variables_in


@dataclass(frozen=True)
class WrittenOut:
    """What takes a call's place.

    Attributes
    ----------
    bindings : list of (Var, expression)
        The last binds the call's own variable.
    kernels : dict
        PrimFuncs that they call, by GlobalVar.
    """

    bindings: list[tuple[Any, Any]]
    kernels: dict[Any, Any]


def written_out(rule: Rule, var: Any, call: Any) -> WrittenOut:
    """Return a call's composite form.

    Raises
    ------
    RuleError
        The rule returned values that are not those of its op.
    """
    builder = relax.BlockBuilder()
    emitter = Emitter(builder)
    sources = list(dict.fromkeys(variables_in(call)))
    span = call.span if rule.origin == "hand" else with_origin(call.span, rule.origin)
    with BLOCK_BUILDER, builder.function("composite", sources):
        with emitter.at(span, var.name):
            inputs = [emitter.lift(argument) for argument in data_of(call)]
            keyword = {"attrs": Attributes(call.attrs)} if rule.takes_attributes else {}
            assert rule.function is not None
            value = _expression(rule, var.ty, rule.function(*inputs, **keyword))
        builder.emit_func_output(value)
    module = builder.get()
    body = module["composite"].body
    bindings = [binding for block in body.blocks for binding in block.bindings]
    kernels = {
        gv: module[gv] for gv in module.get_global_vars() if isinstance(module[gv], tirx.PrimFunc)
    }
    return WrittenOut([*((b.var, _bound(b, span)) for b in bindings), (var, body.body)], kernels)


def _bound(binding: Any, span: Any) -> Any:
    """Return what is bound; a call that a legalisation has emitted itself gets a span too."""
    if isinstance(binding, relax.MatchCast):
        return binding
    value = binding.value
    if not isinstance(value, relax.Call) or value.span is not None:
        return value
    return relax.Call(value.op, value.args, value.attrs, value.ty_args, span)


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
    if value.dtype == str(ty.dtype) and _may_agree(rule, value.shape, expected):
        return value.emitter.builder.match_cast(value.expr, ty)
    if not same_shape(value.shape, expected) or value.dtype != str(ty.dtype):
        raise RuleError(
            f"{rule.location}: the composite of {rule.op} returned {value.dtype} of shape "
            f"{value.shape} for an output {ty.dtype} of shape {expected}"
        )
    return value.expr


def _may_agree(rule: Rule, shape: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether only a run can tell if a legalisation's symbolic extents are those of its op."""
    return (
        rule.origin == "derived"
        and len(shape) == len(expected)
        and not same_shape(shape, expected)
        and all(
            a == b
            for a, b in zip(shape, expected, strict=True)
            if isinstance(a, int) and isinstance(b, int)
        )
    )
