"""A program for many values of some parameters at once: along one more axis, in front.

It serves Jacobians, whose basis vectors are such values, and gradients per example. What depends on
no such parameter is computed once. An op that does becomes the same op over one more axis where its
name counts (matrix products, convolutions) or the axis is easily said (maps, shapes, reductions).
Of any other, the tensor expressions of its lowering get the axis (`fallback.batch`); and what
has none is called once for each value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from ..errors import ArgumentError, MissingGradientError
from ..fallback.batch import UnbatchableError, batch_expressions
from ..fallback.kernels.expressions import expressions_of, kernel_of
from ..ir.calls import calls_op, data_of, result_types
from ..ir.program import Program, substitute, variables_in
from ..ir.tensor import Emitter, Tensor
from ..ir.write import new_program
from ..ops import functional as op
from .batching_rules import BATCHING_RULES, Lane, Site, is_batched, many_of_type
from .derive import derive_rule
from .written_out import written_out


def batch_program(program: Program, batched: Sequence[Any], extent: int) -> Program:
    """A program whose results are those for many values of some parameters.

    Parameters
    ----------
    program : Program
    batched : sequence of parameters of the program, tensors
        The new program's have one more axis in front.
    extent : int
        Of the axis.

    Returns
    -------
    Program
        Of its results those have the axis that depend on these parameters.

    Raises
    ------
    ArgumentError
        A branch reads what depends on these parameters.
    """
    many = {var: relax.Var(var.name, many_of_type(var.ty, extent)) for var in batched}
    params = [many.get(param, param) for param in program.params]

    def body(emitter: Emitter) -> Any:
        batcher = _Batcher(program, emitter, extent)
        for param in program.params:
            batcher.environment[param] = batcher.lanes(many.get(param, param), param in many)
        for var, value in program.bindings:
            batcher.bind(var, value)
        return batcher.result(program.result)

    return new_program(program, program.name, params, body)


def with_axis(result: Tensor, extent: int, old: Any) -> Tensor:
    """A result of such a program with the axis: repeated where it is the same for all values.

    `old` is its type without the axis.
    """
    return result if result.ndim > old.ndim else op.broadcast_to(result, [extent, *result.shape])


class _Batcher:
    """The state of the transform.

    Attributes
    ----------
    environment : dict
        From the program's variables to what stands for them: a `Lane`, a list for a tuple, or an
        expression that is no tensor.
    """

    def __init__(self, program: Program, emitter: Emitter, extent: int):
        self.emitter = emitter
        self.extent = extent
        self.environment: dict[Any, Any] = {}
        self._kernels = dict(program.kernels)

    def lanes(self, expr: Any, batched: bool) -> Any:
        """What stands for an emitted value."""
        return self._wrap(self.emitter.lift(expr), batched)

    def _wrap(self, value: Any, batched: bool) -> Any:
        if isinstance(value, list):
            return [self._wrap(item, batched) for item in value]
        return Lane(value, batched) if isinstance(value, Tensor) else value

    def of(self, expr: Any) -> Any:
        """What stands for an expression of the program's variables."""
        if isinstance(expr, relax.Var):
            return self.environment.get(expr, expr)  # itself if it is an extent
        if isinstance(expr, relax.Tuple):
            return [self.of(item) for item in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self.of(expr.tuple_value)[expr.index]
        return self.lanes(expr, False) if isinstance(expr, tvm.ir.GenericConst) else expr

    def result(self, expr: Any) -> Any:
        """The value of an expression."""

        def returned(value: Any) -> Any:
            if isinstance(value, list):
                return tuple(returned(item) for item in value)
            return value.tensor.expr if isinstance(value, Lane) else value

        return returned(self.of(expr))

    def bind(self, var: Any, value: Any) -> None:
        """Emit one binding."""
        if isinstance(value, relax.MatchCast):
            self.environment[var] = self._cast(self.of(value.value), value.ty)
        elif isinstance(value, relax.Call):
            with self.emitter.at(value.span, var.name):
                self.environment[var] = self._call(var, value)
        elif isinstance(value, relax.If):
            self._refuse_batched(var, value)
            self.environment[var] = self._same_for_all(value)
        else:
            self.environment[var] = self.of(value)

    def _refuse_batched(self, var: Any, value: Any) -> None:
        sources = [source for source in variables_in(value) if is_batched(self.of(source))]
        if sources:
            raise ArgumentError(
                f"the branches of {var.name} read {sources[0].name}, which differs between the "
                "values that are computed at once; compute them one by one, with gg.vjp or gg.jvp"
            )

    def _cast(self, value: Any, ty: Any) -> Any:
        if isinstance(value, list):
            return [self._cast(item, field) for item, field in zip(value, ty.fields, strict=True)]
        if not isinstance(value, Lane):
            return value
        target = many_of_type(ty, self.extent) if value.batched else ty
        return self.lanes(self.emitter.builder.match_cast(value.tensor.expr, target), value.batched)

    def _call(self, var: Any, call: Any) -> Any:
        arguments = [self.of(argument) for argument in call.args]
        if not is_batched(arguments):
            return self._same_for_all(call)
        if isinstance(var.ty, relax.ShapeType) and var.ty.values is not None:
            # The shape of one value, by which other calls of one value go.
            return relax.ShapeExpr(list(var.ty.values))
        rule = BATCHING_RULES.get(getattr(call.op, "name", ""))
        result = None if rule is None else rule(Site(call, arguments, var.ty, self.extent))
        if result is not None:
            is_emitted = isinstance(result, Tensor)
            return self._wrap(result if is_emitted else self.emitter.emit(result), True)
        if calls_op(call, "relax.call_tir") and call.args[0] in self._kernels:
            return self._of_kernel(call)
        try:
            form = written_out(derive_rule(call, self._kernels), var, call)
        except MissingGradientError:
            return self._one_by_one(call)
        self._kernels |= form.kernels
        for inner, value in form.bindings:
            self.bind(inner, value)
        return self.environment[var]

    def _of_kernel(self, call: Any) -> Any:
        """The call of a kernel whose tensor expressions have the axis."""
        func, data = self._kernels[call.args[0]], [self.of(item) for item in data_of(call)]
        types = result_types(call.ty_args[0])
        try:
            expressions = expressions_of(func, len(types))
            parameters = expressions.parameters[: len(data)]
            read = [(p, d) for p, d in zip(parameters, data, strict=True) if p is not None]
            many = [p for p, lane in read if is_batched(lane)]
            outputs, placeholders = batch_expressions(expressions.outputs, many, self.extent)
        except (UnbatchableError, MissingGradientError):
            return self._one_by_one(call)
        remaining = iter(placeholders)
        inputs = [next(remaining) if is_batched(lane) else p for p, lane in read]
        kernel = kernel_of(inputs, outputs)
        name = f"{call.args[0].name_hint}_batched"
        variable = self.emitter.builder.add_func(kernel, name)
        arguments = relax.Tuple([_plain(lane) for _, lane in read])
        results = [many_of_type(ty, self.extent) for ty in types]
        value = self.emitter.emit(relax.call_tir(variable, arguments, results))
        if isinstance(call.ty_args[0], relax.TupleType) and not isinstance(value, list):
            value = [value]
        return self._wrap(value, True)

    def _one_by_one(self, call: Any) -> Any:
        """The results of a call for each value, joined."""
        sources = list(dict.fromkeys(variables_in(call)))
        of_values = []
        for index in range(self.extent):
            environment = {source: _plain(_nth(self.of(source), index)) for source in sources}
            of_values.append(self.emitter.emit(self._emitted_call(call, environment)))
        return self._wrap(_joined(of_values), True)

    def _same_for_all(self, value: Any) -> Any:
        """A value that reads nothing with the axis."""
        environment = {source: _plain(self.of(source)) for source in variables_in(value)}
        emitted = self.emitter.builder.emit(self._emitted_call(value, environment))
        return self.lanes(emitted, False)

    def _emitted_call(self, value: Any, environment: dict[Any, Any]) -> Any:
        """A value in terms of emitted ones; the kernel that it calls is added."""
        builder = self.emitter.builder
        existing = builder.get().get_global_vars()
        for argument in value.args if isinstance(value, relax.Call) else ():
            if isinstance(argument, tvm.ir.GlobalVar) and argument not in existing:
                kernel = self._kernels[argument]
                environment[argument] = builder.add_func(kernel, argument.name_hint)
        return substitute(value, environment)


def _plain(value: Any) -> Any:
    """What stands for a value, as an expression."""
    if isinstance(value, list):
        return relax.Tuple([_plain(item) for item in value])
    return value.tensor.expr if isinstance(value, Lane) else value


def _nth(value: Any, index: int) -> Any:
    """What stands for one of the values."""
    if isinstance(value, list):
        return [_nth(item, index) for item in value]
    if not isinstance(value, Lane) or not value.batched:
        return value
    x = value.tensor
    row = x.emitter.emit(relax.op.strided_slice(x.expr, [0], [index], [index + 1]))
    return Lane(op.reshape(row, x.shape[1:]), False)


def _joined(values: Sequence[Any]) -> Any:
    """Tensors, or lists of them, joined along the axis."""
    first = values[0]
    if isinstance(first, list):
        return [_joined([value[n] for value in values]) for n in range(len(first))]
    rows = [op.reshape(value, [1, *value.shape]).expr for value in values]
    return first.emitter.emit(relax.op.concat(rows, axis=0))
