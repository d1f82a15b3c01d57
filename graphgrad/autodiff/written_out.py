"""The bindings that replace a call with a composite rule.

A composite rule states an op in terms of other ops. Its *form* for a call is a list of bindings,
the last of which binds the call's variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from ..errors import RuleError
from ..fallback.memo import Memo
from ..ir.attributes import Attributes
from ..ir.calls import data_of
from ..ir.compile_lock import COMPILE_LOCK
from ..ir.program import variables_in
from ..ir.provenance import gradient_span
from ..ir.tensor import Emitter, Tensor, same_shape
from ..ir.visits import nodes_in
from ..ops.legalize import lowering_of
from ..registry.rule import Rule, user_rule
from ..tvm_fixes.hooks import identity


@dataclass(frozen=True)
class WrittenOut:
    """The form of a call: the bindings that replace it.

    Attributes
    ----------
    bindings : list of (Var, expression)
        The last one binds the call's own variable.
    kernels : dict
        The PrimFuncs that the bindings call, by GlobalVar.
    """

    bindings: list[tuple[Any, Any]]
    kernels: dict[Any, Any]


@dataclass(frozen=True)
class _CachedForm:
    """A form in the cache.

    Attributes
    ----------
    form : WrittenOut
    sources : list of relax.Var
        The variables that it reads.
    symbols : list of Var
        Its symbolic extents.
    lowering : callable or None
        The op's lowering. It is kept alive because its address is part of the cache's key.
    """

    form: WrittenOut
    sources: list[Any]
    symbols: list[Any]
    lowering: Any


_WRITTEN_OUT: Memo[_CachedForm] = Memo()
"""A cache of the forms of derived composites, because it takes time to lower an op."""


def written_out(rule: Rule, var: Any, call: Any) -> WrittenOut:
    """The form that a composite rule gives a call.

    A derived form is computed once for all calls of an op that differ only in their variables.
    Kernels of one name may differ, so a rule for a kernel has a key of what the kernel computes, in
    the attribute `key` of its function.

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

    cached = _WRITTEN_OUT.get(key, make)
    replacements = zip([*cached.sources, *cached.symbols], [*sources, *symbols], strict=True)
    return _rename_form(cached.form, dict(replacements), var, _span(rule, call))


def _written_out(rule: Rule, var: Any, call: Any, sources: list[Any]) -> WrittenOut:
    """The form of a call, made in a builder of its own whose parameters are the sources."""
    builder = relax.BlockBuilder()
    emitter = Emitter(builder)
    span = _span(rule, call)
    with COMPILE_LOCK, builder.function("composite", sources):
        with emitter.at(span, var.name):
            inputs = [emitter.lift(argument) for argument in data_of(call)]
            keyword = {"attrs": Attributes(call.attrs)} if rule.takes_attributes else {}
            value = _expression(rule, var.ty, rule.call(*inputs, **keyword))
        builder.emit_func_output(value)
    module = builder.get()
    body = module["composite"].body
    bindings = [binding for block in body.blocks for binding in block.bindings]
    kernels = {
        gv: module[gv] for gv in module.get_global_vars() if isinstance(module[gv], tirx.PrimFunc)
    }
    return WrittenOut([*((b.var, _bound(b, span)) for b in bindings), (var, body.body)], kernels)


def _span(rule: Rule, call: Any) -> Any:
    """The span of a form's calls; it tells the origin of a rule that is not graphgrad's."""
    if rule.origin == "hand":
        return call.span
    return gradient_span(call.span, rule.origin, primal=True, rule=user_rule(rule))


def _structure(var: Any, call: Any, sources: list[Any]) -> list[Any]:
    """The parts of the cache's key by which a call's form is determined, up to its variables."""
    numbers = {source: number for number, source in enumerate(sources)}

    def structure(expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return [numbers[expr], expr.ty]
        return [structure(item) for item in expr.fields] if isinstance(expr, relax.Tuple) else expr

    lowering = lowering_of(call.op)
    address = identity(lowering) if isinstance(lowering, tvm_ffi.Function) else id(lowering)
    return [call.op, address, call.attrs, call.ty_args, var.ty, *map(structure, call.args)]


def _rename_form(form: WrittenOut, replacements: dict[Any, Any], var: Any, span: Any) -> WrittenOut:
    """A form for another call: with other variables, and new ones for those that it binds.

    Parameters
    ----------
    form : WrittenOut
    replacements : dict
        From the variables that the form reads to those of the other call; it is extended.
    var : relax.Var
        The variable that the other call is bound to.
    span : Span
        The span of the form's calls.
    """
    rename = (tvm.ir.Var, lambda old_var: replacements.get(old_var, old_var))
    bindings: list[tuple[Any, Any]] = []
    for bound, value in form.bindings:
        is_last = bound is form.bindings[-1][0]
        new_var = var if is_last else relax.Var(var.name, tvm_ffi.structural_map(bound.ty, rename))
        bindings.append((new_var, _rename_value(value, rename, new_var, span)))
        replacements[bound] = new_var
    return WrittenOut(bindings, form.kernels)


def _rename_value(value: Any, rename: tuple[Any, Any], var: Any, span: Any) -> Any:
    """A value of a form for another call, bound to `var` there."""
    if isinstance(value, relax.MatchCast):
        source, ty = (tvm_ffi.structural_map(part, rename) for part in (value.value, value.ty))
        return relax.MatchCast(var, source, ty)
    new_value = tvm_ffi.structural_map(value, rename)
    if not isinstance(new_value, relax.Call):
        return new_value
    return relax.Call(new_value.op, new_value.args, new_value.attrs, new_value.ty_args, span)


def _bound(binding: Any, span: Any) -> Any:
    """The value of a binding, of a cast the binding itself.

    A call that a legalization has emitted without a span gets one.
    """
    if isinstance(binding, relax.MatchCast):
        return binding
    value = binding.value
    if not isinstance(value, relax.Call) or value.span is not None:
        return value
    return relax.Call(value.op, value.args, value.attrs, value.ty_args, span)


def _expression(rule: Rule, ty: Any, value: Any) -> Any:
    """The result of a composite rule as an expression, after a check of its types.

    Raises
    ------
    RuleError
        They are not the types of the op's results.
    """
    if isinstance(ty, relax.TupleType):
        values = list(value) if isinstance(value, list | tuple) else [value]
        if len(values) != len(ty.fields):
            raise RuleError(
                f"{rule.location}: the composite of {rule.op} returned {len(values)} value(s) for "
                f"{len(ty.fields)} output(s)"
            )
        return relax.Tuple(
            [
                _expression(rule, field_ty, field_value)
                for field_ty, field_value in zip(ty.fields, values, strict=True)
            ]
        )
    if not isinstance(value, Tensor):
        raise RuleError(
            f"{rule.location}: the composite of {rule.op} returned {type(value).__name__}; an "
            "output is a Tensor"
        )
    expected = [
        int(extent) if isinstance(extent, tvm.tirx.IntImm) else extent for extent in ty.shape
    ]
    if value.dtype == str(ty.dtype) and _may_agree(rule, value.shape, expected):
        return value.emitter.builder.match_cast(value.expr, ty)
    if not same_shape(value.shape, expected) or value.dtype != str(ty.dtype):
        raise RuleError(
            f"{rule.location}: the composite of {rule.op} returned {value.dtype} of shape "
            f"{value.shape} for an output {ty.dtype} of shape {expected}"
        )
    return value.expr


def _may_agree(rule: Rule, shape: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether a derived form's shape may equal its op's, which only a run can tell.

    Its static extents are those of the op, but some symbolic ones are not provably equal.
    """
    return (
        rule.origin == "derived"
        and len(shape) == len(expected)
        and not same_shape(shape, expected)
        and all(
            extent == expected_extent
            for extent, expected_extent in zip(shape, expected, strict=True)
            if isinstance(extent, int) and isinstance(expected_extent, int)
        )
    )
