"""The tangent of a call whose rule says only cotangents: the rule, transposed.

A rule computes x̄ = Jᵀ ȳ, which is linear in ȳ. The gradient of ⟨x̄, ẋ⟩ by ȳ is J ẋ: the reverse
sweep over the rule's own ops makes the one of the other, and nothing of the rule is left but what
depends on no cotangent (J. Townsend, "A new trick for calculating Jacobian vector products", 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import relax

from ..errors import MissingGradientError, RuleError
from ..ir.program import Program, emit_program, substitute, variables_in
from ..ir.tensor import Emitter, type_shape
from ..ir.write import new_program
from ..registry.rule import Rule
from .apply import Cotangent, apply_rule
from .nested import leaves_of, map_leaves, pairs_of
from .reverse import Gradients, span_of_rule

_NAME = "transposed_rule"


def transpose_rule(
    rule: Rule,
    program: Program,
    binding: tuple[Any, Any],
    emitter: Emitter,
    environment: dict[Any, Any],
    tangents: Sequence[Cotangent],
    wanted: Any,
) -> Cotangent:
    """Emit the tangent of a call's result by the transpose of its rule.

    Parameters
    ----------
    rule : Rule
    program : Program
        The program that the call is part of.
    binding : (Var, Call)
    emitter : Emitter
    environment : dict
        From the program's variables to their emitted values.
    tangents : sequence of Cotangent
        Those of the call's data.
    wanted : nested list of types
        Of the outputs whose tangents are asked for; None in the place of others.

    Returns
    -------
    Cotangent
        Nested like `wanted`.

    Raises
    ------
    MissingGradientError
        An op that the rule computes with has no gradient.
    RuleError
        A rule of the user's is not linear in the cotangents.
    """
    var, value = binding
    # Extents among them are those of the parameters' types.
    sources = [*(v for v in dict.fromkeys(variables_in(value)) if v in environment), var]
    # Dataflow variables cannot be parameters.
    params = {source: relax.Var(source.name, source.ty) for source in sources}
    cotangents = map_leaves(lambda ty: relax.Var("ct", ty), wanted)
    needed = [next(leaves_of(tangent), None) is not None for tangent in tangents]
    seeds: list[Any] = []

    def cotangents_of_data(inner: Emitter) -> Any:
        seed = map_leaves(inner.lift, cotangents)
        call, output = substitute(value, params), params[var]
        with inner.at(span_of_rule(value, rule), f"{var.name}_tangent"):
            results = apply_rule(rule, inner, call, output, seed, needed)
            pairs = list(pairs_of(results, list(tangents)))
            seeds.extend(tangent for _, tangent in pairs)
            return tuple(result.expr for result, _ in pairs)

    free = list(leaves_of(cotangents))
    # Without the program's kernels: some of those that composites brought have names in common,
    # and a rule adds what it calls.
    base = replace(program, kernels={})
    of_rule = new_program(base, _NAME, [*params.values(), *free], cotangents_of_data)
    if not seeds:
        return None
    transposed = _transpose(of_rule, rule, len(free))
    arguments = [
        *(environment[source] for source in sources),
        *_stand_ins(rule, transposed, transposed.params[len(params) :][: len(free)], emitter),
        *(seed.expr for seed in seeds),
    ]
    inner_environment = emit_program(transposed, emitter.builder, arguments)
    results = iter(emitter.lift(substitute(transposed.result, inner_environment)))
    return map_leaves(lambda _: next(results), wanted)


def _transpose(of_rule: Program, rule: Rule, count: int) -> Program:
    """A program from the same parameters and tangents to those of the outputs.

    Parameters
    ----------
    of_rule : Program
        What a rule computes, its last parameters the cotangents.
    rule : Rule
    count : int
        Of cotangents.
    """
    cotangents = of_rule.params[len(of_rule.params) - count :]
    try:
        derivative = Gradients(of_rule, cotangents)
    except MissingGradientError as error:
        raise MissingGradientError(
            f"the tangent of {rule.op} is that of its rule ({rule.location}), transposed: {error}",
            error.missing,
        ) from error
    seeds = [relax.Var("tangent", ty) for ty in of_rule.result.ty.fields]

    def body(emitter: Emitter) -> Any:
        _, gradients = derivative.emit(emitter, [emitter.lift(seed) for seed in seeds])
        return tuple(gradient.expr for gradient in gradients)

    return new_program(of_rule, _NAME, [*of_rule.params, *seeds], body)


def _stand_ins(
    rule: Rule, transposed: Program, cotangents: Sequence[Any], emitter: Emitter
) -> list[Any]:
    """Values for the cotangents, on which the result does not depend.

    A derived kernel may still ask whether a cotangent is zero, to leave 0 · ∞ out. So they are 1.

    Raises
    ------
    RuleError
        The result depends on them, by a rule of the user's.
    """
    read = {source for _, value in transposed.bindings for source in variables_in(value)}
    if rule.origin == "user" and not read.isdisjoint(cotangents):
        raise RuleError(
            f"{rule.location}: the rule for {rule.op} is not linear in its cotangents, or asks for "
            "their values, so it has no transpose, which is what forward mode needs"
        )
    return [
        emitter.full(1.0, type_shape(var.ty), str(var.ty.dtype)).expr if var in read else var
        for var in cotangents
    ]
