"""The forward sweep: tangents flow from the differentiated variables to the outputs.

Each binding is followed by its tangent, so that what only it reads can go at once. No rule is
written for this: a call's tangent follows from its gradient rule, by the rule's kind.

============== ==============================================================================
kind           the tangent of ``y = f(x)``
============== ==============================================================================
elementwise    Σ ẋ · ∂y/∂x, by the partial derivatives that the rule says
linear         ``f(ẋ)``
bilinear       ``f(ȧ, b) + f(a, ḃ)``
composite      that of the ops which take the op's place, as in the reverse sweep
general        the transpose of the rule, which is linear in its cotangents (`transpose`)
============== ==============================================================================

Griewank and Walther, *Evaluating Derivatives* (2nd ed., 2008), chapter 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm import relax

from ..ir.branches import branch_programs
from ..ir.calls import data_of
from ..ir.program import Program, begin_program, emit_binding, substitute, variables_in
from ..ir.tensor import Emitter, type_shape
from ..registry.rule import Rule
from .activity import Activity, has_cotangent
from .apply import Cotangent, apply_forward
from .branches import emit_branch
from .mutation import Reads, mutations_of
from .nested import leaves_of, map_leaves, shaped_like
from .reverse import add, expand, span_of_rule
from .transpose import transpose_rule


class Tangents:
    """The tangents of a program's result, before they are emitted.

    Parameters
    ----------
    program : Program
        Not changed.
    wrt : sequence of variables of the program
        Float tensors, or tuples of those.

    Raises
    ------
    MissingGradientError
        As `expand`.
    """

    def __init__(self, program: Program, wrt: Sequence[Any]):
        self._wrt = wrt
        self._program, self._activity = expand(program, wrt)

    def emit(
        self,
        emitter: Emitter,
        tangents: Sequence[Cotangent],
        arguments: Sequence[Any] | None = None,
    ) -> tuple[Any, Cotangent]:
        """Emit the program, and behind each of its bindings the tangent.

        Parameters
        ----------
        emitter : Emitter
        tangents : sequence of Cotangent
            One for each variable that is differentiated.
        arguments : sequence of expressions, optional
            The values of the program's parameters; by default, the parameters themselves.

        Returns
        -------
        result : relax expression
            The program's result.
        tangent : Cotangent
            Of the result: None where it depends on no variable that is differentiated.

        Raises
        ------
        MissingGradientError, RuleError
            As of `transpose_rule`.
        """
        program = self._program
        environment = begin_program(program, emitter.builder, arguments)
        seeds = dict(zip(self._wrt, tangents, strict=True))
        sweep = _Sweep(emitter, program, environment, self._activity, seeds)
        sweep.run()
        return substitute(program.result, environment), sweep.of(program.result)


class _Sweep:
    """The state of one forward sweep: the tangents so far, by variable of the program."""

    def __init__(
        self,
        emitter: Emitter,
        program: Program,
        environment: dict[Any, Any],
        activity: Activity,
        seeds: dict[Any, Cotangent],
    ):
        self.emitter = emitter
        self.program = program
        self.environment = environment
        self.activity = activity
        self.seeds = seeds
        params = set(program.params)
        self.tangents = {var: tangent for var, tangent in seeds.items() if var in params}
        self.wanted = _wanted_outputs(program, activity)
        self.mutations = mutations_of(program)
        self.reads = Reads(emitter, environment)

    def run(self) -> None:
        """Emit every binding and its tangent."""
        for var, value in self.program.bindings:
            if isinstance(value, relax.If) and var in self.activity.rules:
                tangent = self._emit_branches(var, value)
            else:
                emitted = emit_binding(self.emitter.builder, var, value, self.environment)
                self.environment[var] = emitted
                self.reads.add(var, emitted)
                tangent = self._tangent(var, value) if var in self.activity.needed else None
            tangent = add(tangent, self.seeds.get(var))
            if tangent is not None:
                self.tangents[var] = tangent

    def of(self, expr: Any) -> Cotangent:
        """The tangent of an expression that consists of variables of the program."""
        if isinstance(expr, relax.Tuple):
            parts = [self.of(item) for item in expr.fields]
            return parts if any(part is not None for part in parts) else None
        if isinstance(expr, relax.TupleGetItem):
            whole = self.of(expr.tuple_value)
            return None if whole is None else whole[expr.index]
        return self.tangents.get(expr) if isinstance(expr, relax.Var) else None

    def _tangent(self, var: Any, value: Any) -> Cotangent:
        """The tangent of a binding's variable."""
        if isinstance(value, relax.MatchCast):
            return self._cast(self.of(value.value), value.ty)
        rule = self.activity.rules.get(var)
        if rule is None:
            # Another name or a tuple. Or a call that no derivative passes through.
            return None if isinstance(value, relax.Call) else self.of(value)
        tangents = [self.of(argument) for argument in data_of(value)]
        if next(leaves_of(tangents), None) is None:
            return None
        with self.emitter.at(span_of_rule(value, rule), f"{var.name}_tangent"):
            tangent = self._of_call(rule, var, value, tangents)
            if self.mutations is not None:
                # The call has run already when its tangent reads what it may have overwritten.
                read = self.reads.of(list(leaves_of(tangent)))
                self.mutations.refuse_overwritten(var, value, read, at_once=True)
        return tangent

    def _of_call(self, rule: Rule, var: Any, value: Any, tangents: list[Cotangent]) -> Cotangent:
        if rule.kind == "general" or rule.affine:
            arguments = (self.program, (var, value), self.emitter, self.environment, tangents)
            return transpose_rule(rule, *arguments, self.wanted[var])
        call = substitute(value, self.environment)
        return apply_forward(rule, self.emitter, call, self.environment[var], tangents)

    def _cast(self, tangent: Cotangent, ty: Any) -> Cotangent:
        """The tangent of a cast value: cast to the same shapes."""
        if isinstance(ty, relax.TupleType):
            parts = tangent or [None] * len(ty.fields)
            return [self._cast(part, field) for part, field in zip(parts, ty.fields, strict=True)]
        if tangent is None or str(tangent.ty) == str(ty):
            return tangent
        emitter = self.emitter
        return emitter.lift(emitter.builder.match_cast(tangent.expr, ty))

    def _emit_branches(self, var: Any, value: relax.If) -> Cotangent:
        """Emit an If whose branches return their values and the tangents of those."""
        emitter = self.emitter
        if self.mutations is not None:
            self.mutations.refuse_overwritten(var, value, variables_in(value), at_once=True)
        sources = [var for var in dict.fromkeys(variables_in(value)) if var in self.tangents]
        # A zero that is first needed inside of a branch would be undefined outside of it.
        seeds = {
            source: map_leaves(lambda tensor: emitter.lift(tensor.expr), self.tangents[source])
            for source in sources
        }

        def branch(program: Program) -> Any:
            tangents = Tangents(program, sources)

            def body() -> list[Any]:
                arguments = [self.environment.get(param, param) for param in program.params]
                of_sources = [seeds[source] for source in sources]
                result, tangent = tangents.emit(emitter, of_sources, arguments)
                return [emitter.lift(result), floats_of(emitter, tangent, value.ty)]

            return emit_branch(emitter, body)

        with emitter.at(span_of_rule(value, self.activity.rules[var]), var.name):
            branches = map(branch, branch_programs(self.program, value))
            condition = substitute(value.cond, self.environment)
            both = emitter.builder.emit(relax.If(condition, *branches, value.span), var.name)
            self.environment[var] = emitter.builder.emit(relax.TupleGetItem(both, 0), var.name)
            self.reads.add(var, self.environment[var])
            floats = iter(emitter.lift(emitter.builder.emit(relax.TupleGetItem(both, 1))))
        return shaped_like(value.ty, lambda _: next(floats))


def floats_of(emitter: Emitter, tangent: Cotangent, ty: Any) -> list[Any]:
    """The tangents of the float tensors in a value, in order; zeros in the place of None."""
    if isinstance(ty, relax.TupleType):
        parts = [None] * len(ty.fields) if tangent is None else tangent
        pairs = zip(parts, ty.fields, strict=True)
        return [leaf for part, field in pairs for leaf in floats_of(emitter, part, field)]
    if not has_cotangent(ty):
        return []
    return [emitter.full(0.0, type_shape(ty), str(ty.dtype)) if tangent is None else tangent]


def _wanted_outputs(program: Program, activity: Activity) -> dict[Any, Any]:
    """The types of those float outputs of each binding whose tangents something reads, nested."""
    parts: dict[Any, set[int]] = {}
    wholes: set[Any] = set()
    for var, value in [*program.bindings, (None, program.result)]:
        if var is None or var in activity.needed:
            for source, index in _parts_read(value):
                if index is None:
                    wholes.add(source)
                else:
                    parts.setdefault(source, set()).add(index)
    wanted = {}
    for var, _ in program.bindings:
        types = shaped_like(var.ty, lambda ty: ty)
        if isinstance(types, list) and var not in wholes:
            read = parts.get(var, ())
            types = [ty if index in read else None for index, ty in enumerate(types)]
        wanted[var] = types
    return wanted


def _parts_read(value: Any) -> Iterator[tuple[Any, int | None]]:
    """Yield the variables that a binding's value reads, each with the member of its tuple.

    None in the place of the member if it is the whole.
    """
    if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Var):
        yield value.tuple_value, int(value.index)
    elif isinstance(value, relax.Tuple):
        for item in value.fields:
            yield from _parts_read(item)
    elif isinstance(value, relax.Call):
        for argument in value.args:
            yield from _parts_read(argument)
    else:
        for var in variables_in(value):
            yield var, None
