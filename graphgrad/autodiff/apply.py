"""Applying one rule to one call: what rules of each kind leave to the engine is done here.

That is products with the cotangent, sums over broadcast axes, conversions of dtypes, zeros in place
of missing cotangents, and checks of a rule's results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ..errors import RuleError
from ..ir.attributes import Attributes
from ..ir.calls import data_of, with_data
from ..ir.tensor import Emitter, Tensor, has_shape, is_float, type_shape
from ..ops import functional as op
from ..ops.elementwise import masked_product
from ..registry.rule import Rule
from .nested import shaped_like

Cotangent = Any
"""A `Tensor`, a list of cotangents for a tuple, or None for zero: nothing was contributed."""


def apply_rule(
    rule: Rule,
    emitter: Emitter,
    call: relax.Call,
    output: Any,
    cotangent: Cotangent,
    wanted: Sequence[bool],
) -> list[Cotangent]:
    """The cotangents of the data of a call (see `ir.calls.data_of`).

    Parameters
    ----------
    rule : Rule
    emitter : Emitter
    call : relax.Call
        The call as emitted: its arguments are variables of the function being written.
    output : relax.Var
        The variable that holds its value.
    cotangent : Cotangent
        The cotangent of the output.
    wanted : sequence of bool
        Which of the call's data need a cotangent; the others get None.

    Raises
    ------
    RuleError
        The rule returned what does not fit the call's arguments.
    """
    inputs = [emitter.lift(argument) for argument in data_of(call)]
    results = _answer(rule, inputs, emitter.lift(output), cotangent, Attributes(call.attrs))
    _check_count(rule, results, inputs)
    if rule.kind == "elementwise":
        results = [
            _product(cotangent, partial, rule.singular) if needed and partial is not None else None
            for partial, needed in zip(results, wanted, strict=True)
        ]
    return [
        _fit_result(rule, emitter, index, result, primal) if needed else None
        for index, (result, primal, needed) in enumerate(zip(results, inputs, wanted, strict=True))
    ]


def apply_forward(
    rule: Rule,
    emitter: Emitter,
    call: relax.Call,
    output: Any,
    tangents: Sequence[Cotangent],
) -> Cotangent:
    """The tangent of a call's result, by an elementwise, linear or bilinear rule.

    Parameters
    ----------
    rule : Rule
    emitter : Emitter
    call, output
        As of `apply_rule`.
    tangents : sequence of Cotangent
        Those of the call's data; at least one is not None.

    Raises
    ------
    RuleError
        The rule returned what does not fit the call's arguments.
    """
    if rule.kind == "elementwise":
        return _sum_of_products(rule, emitter, call, emitter.lift(output), tangents)
    inputs = [emitter.lift(argument) for argument in data_of(call)]
    if rule.kind == "bilinear":
        calls = [
            with_data(call, [*inputs[:index], tangent, *inputs[index + 1 :]])
            for index, tangent in enumerate(tangents)
            if tangent is not None
        ]
        first, *further = map(emitter.emit, calls)
        return first + further[0] if further else first
    # What has a cotangent has a tangent; a table of positions, or the shape of a like, stays.
    active = _active_inputs(rule, emitter, call, inputs, output)
    pairs = zip(tangents, active, strict=True)
    if all(tangent is None for tangent, is_active in pairs if is_active):
        return None
    data = [
        _whole(tangent, primal) if is_active else primal
        for tangent, primal, is_active in zip(tangents, inputs, active, strict=True)
    ]
    return emitter.emit(with_data(call, data))


def _sum_of_products(
    rule: Rule,
    emitter: Emitter,
    call: relax.Call,
    output: Tensor,
    tangents: Sequence[Cotangent],
) -> Cotangent:
    """The tangent by an elementwise rule: Σ ẋ · ∂y/∂x."""
    inputs = [emitter.lift(argument) for argument in data_of(call)]
    partials = _answer(rule, inputs, output, None, Attributes(call.attrs))
    _check_count(rule, partials, inputs)
    total = None
    for tangent, partial in zip(tangents, partials, strict=True):
        if tangent is not None and partial is not None:
            term = _product(tangent, partial, rule.singular)
            total = term if total is None else total + term
    if total is None:
        return None
    return op.broadcast_to(total, output.shape).astype(output.dtype)


def _active_inputs(
    rule: Rule, emitter: Emitter, call: relax.Call, inputs: list[Any], output: Any
) -> list[bool]:
    """For which inputs a linear rule returns a cotangent."""
    if len(inputs) == 1:
        return [True]
    zero = shaped_like(output.ty, lambda ty: emitter.full(0.0, type_shape(ty), str(ty.dtype)))
    results = _answer(rule, inputs, emitter.lift(output), zero, Attributes(call.attrs))
    return [result is not None for result in results]


def _whole(tangent: Cotangent, primal: Any) -> Any:
    """A tangent with zeros in the places that have none."""
    if isinstance(primal, list):
        parts = [None] * len(primal) if tangent is None else tangent
        return [_whole(part, item) for part, item in zip(parts, primal, strict=True)]
    return _zero(primal) if tangent is None else tangent


def _answer(
    rule: Rule, inputs: list[Any], value: Any, cotangent: Cotangent, attributes: Attributes
) -> Sequence[Any]:
    """Call a rule's function as its kind demands; its result for each input."""
    if rule.kind == "general":
        outputs = value if isinstance(value, list) else [value]
        results = rule.call(inputs, outputs, _fill_missing(cotangent, outputs), attributes)
        if results is None:
            raise RuleError(
                f"{rule.location}: the rule for {rule.op} returned nothing; return a list of one "
                "cotangent for each input, None where not differentiable"
            )
        return results if isinstance(results, tuple | list) else (results,)
    keyword = {"attrs": attributes} if rule.takes_attributes else {}
    if rule.kind == "elementwise":
        results = rule.call(*inputs, value, **keyword)
    elif rule.kind == "linear":
        results = rule.call(*map(_type_only, inputs), cotangent, **keyword)
    else:
        results = rule.call(*inputs, cotangent, **keyword)
    # A list is the result for one input that is a tuple.
    return results if isinstance(results, tuple) else (results,)


def _check_count(rule: Rule, results: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Raise `RuleError` unless a rule returned one result for each input."""
    if len(results) != len(inputs):
        raise RuleError(
            f"{rule.location}: the rule for {rule.op} returned {len(results)} cotangent(s) for "
            f"{len(inputs)} input(s); return one for each, None where not differentiable"
        )


def _product(ct: Tensor, partial: Any, singular: bool) -> Tensor:
    """The product ct · partial; of a singular rule, 0 · ∞ and 0 · NaN are 0."""
    if not singular or ct.fill is not None or not isinstance(partial, Tensor):
        return ct * partial
    return masked_product(ct, partial)


def _type_only(value: Any) -> Any:
    """A tensor that has a type but no value: a linear rule must not read its inputs."""
    if isinstance(value, list):
        return [_type_only(item) for item in value]
    return Tensor(value.emitter, None, ty=value.ty) if isinstance(value, Tensor) else value


def _fill_missing(cotangent: Cotangent, outputs: list[Any]) -> list[Tensor | None]:
    """One cotangent per output: zeros if it has none, None if the output is no float tensor."""
    cotangents = cotangent if isinstance(cotangent, list) else [cotangent]
    cotangents = cotangents + [None] * (len(outputs) - len(cotangents))
    return [
        ct if ct is not None else _zero(output)
        for ct, output in zip(cotangents, outputs, strict=True)
    ]


def _zero(output: Any) -> Tensor | None:
    """A zero cotangent of an output; None if it is no float tensor."""
    if not isinstance(output, Tensor) or not is_float(output.dtype):
        return None
    return output.emitter.full(0.0, output.shape, output.dtype)


def _fit_result(rule: Rule, emitter: Emitter, index: int, result: Any, primal: Any) -> Cotangent:
    """A rule's result in the shape and dtype of the input that it belongs to."""
    if result is None:
        return None
    if isinstance(primal, list):
        results = result if isinstance(result, list | tuple) else [result]
        if len(results) != len(primal):
            raise RuleError(
                f"{rule.location}: the rule for {rule.op} returned {len(results)} cotangent(s) "
                f"for the {len(primal)} tensors of input {index}"
            )
        return [
            _fit_result(rule, emitter, index, part, primal_part)
            for part, primal_part in zip(results, primal, strict=True)
        ]
    if not isinstance(primal, Tensor) or not is_float(primal.dtype):
        raise RuleError(
            f"{rule.location}: the rule for {rule.op} returned a cotangent for input {index}, "
            "which is not a float tensor; return None there"
        )
    value = result if isinstance(result, Tensor) else _emitted(rule, emitter, index, result)
    if not is_float(value.dtype):
        raise RuleError(
            f"{rule.location}: the rule for {rule.op} returned a cotangent of dtype {value.dtype} "
            f"for input {index} of dtype {primal.dtype}"
        )
    try:
        # An input that was broadcast gets the sum over all elements that it was copied to.
        return op.sum_to(value, primal.shape).astype(primal.dtype)
    except RuleError as error:
        raise RuleError(
            f"{rule.location}: the rule for {rule.op} returned a cotangent of "
            f"{_shape_text(value)} for input {index} of shape {primal.shape}: {error}"
        ) from error


def _shape_text(value: Tensor) -> str:
    """The shape of a tensor in words."""
    return f"shape {value.shape}" if has_shape(value.ty) else "unknown shape"


def _emitted(rule: Rule, emitter: Emitter, index: int, result: Any) -> Tensor:
    """A rule's result that is a Relax expression, emitted.

    Raises
    ------
    RuleError
        It is no expression of a tensor.
    """
    with rule.named_errors():
        value = emitter.emit(result) if isinstance(result, relax.Expr) else None
    if not isinstance(value, Tensor):
        raise RuleError(
            f"{rule.location}: the rule for {rule.op} returned {type(result).__name__} for input "
            f"{index}; a cotangent is a Tensor or a Relax expression of a tensor"
        )
    return value
