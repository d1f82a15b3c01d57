"""A composite op in the place of its call: the bindings of the form that its rule states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from ..errors import RuleError
from ..fallback.memo import Memo
from ..ir.calls import data_of
from ..ir.compile_lock import COMPILE_LOCK
from ..ir.program import variables_in
from ..ir.provenance import gradient_span
from ..ir.tensor import Emitter, Tensor, same_shape
from ..ir.visits import nodes_in
from ..ops.legalize import lowering_of
from ..registry.attributes import Attributes
from ..registry.rule import Rule
from ..tvm_fixes.hooks import identity


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


@dataclass(frozen=True)
class _CachedForm:
    """A form and the variables that it reads: values, and symbolic extents.

    Attributes
    ----------
    lowering : callable or None
        Kept alive, as its address stands for it.
    """

    form: WrittenOut
    sources: list[Any]
    symbols: list[Any]
    lowering: Any


_WRITTEN_OUT: Memo[_CachedForm] = Memo()
"""The forms of derived composites: to lower an op takes time."""


def written_out(rule: Rule, var: Any, call: Any) -> WrittenOut:
    """A call's composite form.

    Calls of an op that differ in nothing but their variables are written out once, if the form is
    derived. Those of kernels that are called by one name are compared by what they compute, which
    the rule's function has as its attribute `key`.

    Raises
    ------
    RuleError
        The rule returned values that are not those of its op.
    """
    sources = list(dict.fromkeys(variables_in(call)))
    if rule.origin != "derived":
        return _written_out(rule, var, call, sources)
    key = [*_structure(var, call, sources), getattr(rule.function, "key", None)]
    symbols = nodes_in(tvm_ffi.convert(key), tvm.ir.Var)

    def make() -> _CachedForm:
        form = _written_out(rule, var, call, sources)
        return _CachedForm(form, sources, symbols, lowering_of(call.op))

    kept = _WRITTEN_OUT.get(key, make)
    given = zip([*kept.sources, *kept.symbols], [*sources, *symbols], strict=True)
    return _rename_form(kept.form, dict(given), var, _span(rule, call))


def _written_out(rule: Rule, var: Any, call: Any, sources: list[Any]) -> WrittenOut:
    builder = relax.BlockBuilder()
    emitter = Emitter(builder)
    span = _span(rule, call)
    with COMPILE_LOCK, builder.function("composite", sources):
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


def _span(rule: Rule, call: Any) -> Any:
    return call.span if rule.origin == "hand" else gradient_span(call.span, rule.origin)


def _structure(var: Any, call: Any, sources: list[Any]) -> list[Any]:
    """The key of a call's decomposition."""
    numbers = {source: number for number, source in enumerate(sources)}

    def structure(expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return [numbers[expr], expr.ty]
        return [structure(e) for e in expr.fields] if isinstance(expr, relax.Tuple) else expr

    lowering = lowering_of(call.op)
    address = identity(lowering) if isinstance(lowering, tvm_ffi.Function) else id(lowering)
    return [call.op, address, call.attrs, call.ty_args, var.ty, *map(structure, call.args)]


def _rename_form(form: WrittenOut, renamed: dict[Any, Any], var: Any, span: Any) -> WrittenOut:
    """A form with other variables, in the place of another call."""
    rename = (tvm.ir.Var, lambda known: renamed.get(known, known))
    bindings: list[tuple[Any, Any]] = []
    for bound, value in form.bindings:
        is_last = bound is form.bindings[-1][0]
        own = var if is_last else relax.Var(var.name, tvm_ffi.structural_map(bound.ty, rename))
        bindings.append((own, _rename_value(value, rename, own, span)))
        renamed[bound] = own
    return WrittenOut(bindings, form.kernels)


def _rename_value(value: Any, rename: tuple[Any, Any], var: Any, span: Any) -> Any:
    """The value bound to a variable."""
    if isinstance(value, relax.MatchCast):
        source, ty = (tvm_ffi.structural_map(part, rename) for part in (value.value, value.ty))
        return relax.MatchCast(var, source, ty)
    own = tvm_ffi.structural_map(value, rename)
    if not isinstance(own, relax.Call):
        return own
    return relax.Call(own.op, own.args, own.attrs, own.ty_args, span)


def _bound(binding: Any, span: Any) -> Any:
    """The bound value; a call that a legalization has emitted itself gets a span too."""
    if isinstance(binding, relax.MatchCast):
        return binding
    value = binding.value
    if not isinstance(value, relax.Call) or value.span is not None:
        return value
    return relax.Call(value.op, value.args, value.attrs, value.ty_args, span)


def _expression(rule: Rule, ty: Any, value: Any) -> Any:
    """The expression that a composite rule gave, after checking its types."""
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
    """Whether only a run can tell if a legalization's symbolic extents are those of its op."""
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
