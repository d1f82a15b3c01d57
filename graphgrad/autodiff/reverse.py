"""The reverse sweep: cotangents flow from the outputs back to the differentiated variables.

Calls with composite rules are first replaced in the primal program: a composite rule states an op
in terms of ops that have rules. So nothing is computed twice, and derivatives of the op exist to
the order to which those ops have them.

The sweep is that of Griewank and Walther, *Evaluating Derivatives* (2nd ed., 2008), chapter 3:
every binding is visited once, last first, and a variable that is read several times gets the sum of
the cotangents from all its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from ..ir.branches import branch_programs
from ..ir.calls import data_of
from ..ir.program import Program, emit_program, substitute, variables_in
from ..ir.provenance import gradient_span, read
from ..ir.tensor import Emitter, type_shape
from ..ir.write import new_program, write_function
from ..registry.rule import Rule, user_rule
from .activity import Activity, analyze, has_cotangent
from .apply import Cotangent, apply_rule
from .branches import emit_branch, materialized
from .checkpoints import Checkpoints
from .mutation import Reads, mutations_of
from .written_out import written_out


def add(a: Cotangent, b: Cotangent) -> Cotangent:
    """The sum of two cotangents; None is zero."""
    if a is None:
        return b
    if b is None:
        return a
    if isinstance(a, list):
        return [add(x, y) for x, y in zip(a, b, strict=True)]
    return a + b


class Gradients:
    """The gradients of a program's result, before they are emitted.

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
        # Before composites are written out: `emit` adds the kernels that these call.
        self._kernels, self._wrt = program.kernels, wrt
        self._program, self._activity = expand(program, wrt)

    def emit(
        self, emitter: Emitter, seed: Cotangent, arguments: Sequence[Any] | None = None
    ) -> tuple[Any, list[Any]]:
        """Emit the program and behind it the gradients.

        Parameters
        ----------
        emitter : Emitter
        seed : Cotangent
            The cotangent of the program's result, as for `backward`.
        arguments : sequence of expressions, optional
            The values of the program's parameters; by default, the parameters themselves.

        Returns
        -------
        result : relax expression
            The program's result.
        gradients : list
            As `backward` returns them.
        """
        program = self._program
        environment = emit_program(program, emitter.builder, arguments)
        gradients = backward(emitter, program, environment, self._activity, seed, self._wrt)
        return substitute(program.result, environment), gradients

    def write(
        self,
        name: str,
        params: Sequence[Any],
        body: Callable[[Emitter], Any],
        mod: tvm.IRModule | None = None,
    ) -> tvm.IRModule:
        """A module with a new function, whose body emits the gradients.

        Parameters
        ----------
        name, params, body
            As of `write_function`.
        mod : IRModule, optional
            The module to add it to; by default, one of the kernels that the program may call.
        """
        mod = tvm.IRModule(self._kernels) if mod is None else mod
        pure, dataflow = self._program.pure, self._program.dataflow
        return write_function(mod, name, params, body, pure=pure, dataflow=dataflow)


def gradient_program(
    program: Program,
    wrt: Sequence[Any],
    cotangents: Sequence[Any],
    seed: Callable[[Emitter], Cotangent],
) -> Program:
    """A program that returns a program's result, and a tuple of its gradients.

    Parameters
    ----------
    program : Program
        Not changed.
    wrt : sequence of variables of the program
    cotangents : sequence of relax.Var
        Further parameters, behind those of the program.
    seed : callable
        The cotangent of the result, as for `backward`; it may read these parameters.

    Raises
    ------
    MissingGradientError
        As `expand`.
    """
    derivative = Gradients(program, wrt)

    def body(emitter: Emitter) -> Any:
        result, gradients = derivative.emit(emitter, seed(emitter))
        return result, tuple(gradients)

    return new_program(program, program.name, [*program.params, *cotangents], body)


def backward(
    emitter: Emitter,
    program: Program,
    environment: dict[Any, Any],
    activity: Activity,
    seed: Cotangent,
    wrt: Sequence[Any],
) -> list[Any]:
    """Emit the cotangents of some variables of a program.

    Parameters
    ----------
    emitter : Emitter
        Writes behind the program's own bindings.
    program : Program
    environment : dict
        From the program's variables to their emitted values, as `emit_program` returns it.
    activity : Activity
    seed : Cotangent
        Cotangent of the program's result: a list, nested like the result, where it is a tuple;
        None in the place of an output that has none.
    wrt : sequence of variables of the program
        Float tensors, or tuples of those.

    Returns
    -------
    list of Tensor, or nested tuples of them
        One per entry of `wrt`, in its shape and dtype; zeros where no output depends on it.

    Raises
    ------
    MissingGradientError
        A gradient reads a value that a call overwrites.
    """
    sweep = _Sweep(emitter, program, environment, activity)
    sweep.send(program.result, seed)
    wanted = set(wrt)
    for var, value in reversed(program.bindings):
        cotangent = sweep.cotangents.get(var)
        if cotangent is None:
            continue
        # Only these are asked for later; of the others no more reader can come.
        if var not in wanted:
            del sweep.cotangents[var]
        sweep.visit(var, value, cotangent)
    return [sweep.result(var) for var in wrt]


class _Sweep:
    """The state of one reverse sweep: the cotangents so far, by variable of the program."""

    def __init__(
        self,
        emitter: Emitter,
        program: Program,
        environment: dict[Any, Any],
        activity: Activity,
    ):
        self.emitter = emitter
        self.program = program
        self.environment = environment
        self.activity = activity
        self.cotangents: dict[Any, Cotangent] = {}
        self.mutations = mutations_of(program)
        self.reads = Reads(emitter, environment)
        self.checkpoints = Checkpoints(program, emitter, environment)

    def send(self, expr: Any, cotangent: Cotangent) -> None:
        """Add a cotangent of an expression to those of the variables that it consists of."""
        if cotangent is None:
            return
        if isinstance(expr, relax.Tuple):
            for item, part in zip(expr.fields, cotangent, strict=True):
                self.send(item, part)
        elif isinstance(expr, relax.TupleGetItem):
            parts: list[Cotangent] = [None] * len(expr.tuple_value.ty.fields)
            parts[expr.index] = cotangent
            self.send(expr.tuple_value, parts)
        elif isinstance(expr, relax.MatchCast):
            self._send_through_cast(expr, cotangent)
        elif isinstance(expr, relax.Var) and expr in self.activity.varied:
            self.cotangents[expr] = add(self.cotangents.get(expr), cotangent)

    def _send_through_cast(self, cast: relax.MatchCast, cotangent: Cotangent) -> None:
        if any(var in self.activity.varied for var in variables_in(cast.value)):
            self.send(cast.value, cotangent)

    def visit(self, var: Any, value: Any, cotangent: Cotangent) -> None:
        """Propagate a binding's cotangent to the variables that the binding reads."""
        rule = self.activity.rules.get(var)
        if rule is None:
            # Another name, a tuple or a cast. Or a call that no derivative passes through: `send`
            # sends it nothing, as `activity` has decided.
            self.send(value, cotangent)
            return
        if isinstance(value, relax.If):
            self._visit_branches(var, value, cotangent)
            return
        environment = self.checkpoints.environment_of(var, value)
        call = substitute(value, environment)
        needs_cotangent = [
            any(source in self.activity.varied for source in variables_in(argument))
            for argument in data_of(value)
        ]
        with self.emitter.at(span_of_rule(value, rule), f"{var.name}_ct"):
            output = environment[var]
            results = apply_rule(rule, self.emitter, call, output, cotangent, needs_cotangent)
            if self.mutations is not None:
                self.mutations.refuse_overwritten(var, value, self.reads.of(results))
            for argument, result in zip(data_of(value), results, strict=True):
                self.send(argument, result)

    def _visit_branches(self, var: Any, value: Any, cotangent: Cotangent) -> None:
        """Propagate the cotangent of an If to the variables that its branches read."""
        if self.mutations is not None:
            self.mutations.refuse_repeated(var, value)
            self.mutations.refuse_overwritten(var, value, variables_in(value))
        sources = [
            source
            for source in dict.fromkeys(variables_in(value))
            if source in self.activity.varied and has_cotangent(source.ty)
        ]
        emitter = self.emitter
        with emitter.at(span_of_rule(value, self.activity.rules[var]), f"{var.name}_ct"):
            seed = materialized(cotangent)

            def branch(program: Program) -> Any:
                expanded, activity = expand(program, sources)

                def body() -> list[Any]:
                    arguments = [self.environment.get(param, param) for param in expanded.params]
                    inner = emit_program(expanded, emitter.builder, arguments)
                    environment = {**self.environment, **inner}
                    return backward(emitter, expanded, environment, activity, seed, sources)

                return emit_branch(emitter, body)

            branches = map(branch, branch_programs(self.program, value))
            condition = substitute(value.cond, self.environment)
            results = emitter.emit(relax.If(condition, *branches, value.span))
            for source, result in zip(sources, results, strict=True):
                self.send(source, result)

    def result(self, var: Any) -> Any:
        """A variable's cotangent: zeros if nothing was sent to it; a tuple if it is one."""
        return self._whole(self.cotangents.get(var), var.ty)

    def _whole(self, cotangent: Cotangent, ty: Any) -> Any:
        """A cotangent of a type with zeros in all places that have none."""
        if isinstance(ty, relax.TupleType):
            parts = [None] * len(ty.fields) if cotangent is None else cotangent
            return tuple(
                self._whole(part, part_ty) for part, part_ty in zip(parts, ty.fields, strict=True)
            )
        if cotangent is not None:
            return cotangent
        return self.emitter.full(0.0, type_shape(ty), str(ty.dtype))


def span_of_rule(value: Any, rule: Rule) -> Any:
    """The span of a gradient: the node of the primal, and the origin of its rule.

    Where a call stands in the form of a composite, a rule of graphgrad's for it counts as of the
    composite's origin.
    """
    source = read(value.span)
    if rule.origin == "hand" and source.origin is not None:
        return gradient_span(value.span, source.origin, rule=source.rule)
    return gradient_span(value.span, rule.origin, rule=user_rule(rule))


def expand(program: Program, wrt: Sequence[Any]) -> tuple[Program, Activity]:
    """Replace the active calls with composite rules; the new program, and its activity.

    Parameters
    ----------
    program : Program
        Not changed.
    wrt : variables of the program
        They are variables of the returned program as well.

    Raises
    ------
    MissingGradientError
        Active ops have no rule, an in-place call overwrites what gradients read, a value is used
        under its old name behind such a call, or an output depends on what a call wrote to memory.
    RuleError
        A composite rule returned values that are not those of its op.
    """
    mutations = mutations_of(program)
    if mutations is not None:
        mutations.refuse_stale_names()
    activity = analyze(program, wrt)
    # This ends: a composite is stated in other ops, and a kernel that saves intermediates has the
    # attribute "graphgrad.saved", and is not replaced again.
    while composites := {v: r for v, r in activity.rules.items() if r.kind == "composite"}:
        bindings: list[tuple[Any, Any]] = []
        kernels = dict(program.kernels)
        for var, value in program.bindings:
            if var in composites:
                form = written_out(composites[var], var, value)
                bindings += form.bindings
                kernels |= form.kernels
            else:
                bindings.append((var, value))
        program = replace(program, bindings=bindings, kernels=kernels)
        activity = analyze(program, wrt)
    mutations = mutations_of(program)
    if mutations is not None:
        mutations.refuse_unknown_derivatives(activity)
    return program, activity
