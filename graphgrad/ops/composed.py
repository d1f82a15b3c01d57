"""Bindings of Relax as one graph of tensor expressions, such as the body of a loop.

Each op is lowered by its usual legalization, but the builder that the legalization writes into is a
`StageBuilder`: instead of adding a kernel for each op to the module, it hands out the kernel's
tensor expressions, so that stages of one op read the stages of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from ..errors import ArgumentError, GraphGradError
from ..fallback.graph import listed, operations, rewritten
from ..fallback.kernels.expressions import expressions_of
from ..fallback.kernels.extents import rename_extent
from ..fallback.scans.scan import by_other_stages
from ..fallback.scatter import scatters_of
from ..fallback.walk import tensor_key
from ..tvm_fixes.hooks import begin_block, end_block, identity
from .legalize import lowering_of

Value = Any
"""A te.Tensor; a list of values where Relax has a tuple."""


class Composition:
    """The tensor expressions of Relax values.

    Parameters
    ----------
    module : IRModule
        The kernels that may be called.
    dtype : str
        Of the extents; those of Relax are int64.

    Attributes
    ----------
    values : dict
        From variables, and constants of more than one element.
    kernels : dict
        From global variables to the functions that may be called.
    """

    def __init__(self, module: tvm.IRModule, dtype: str):
        self.values: dict[Any, Value] = {}
        self.kernels: dict[Any, Any] = dict(module.functions)
        self._dtype = dtype
        self._inside: dict[int, Any] = {}
        self._outside: dict[int, Any] = {}

    def placeholder(self, value: Any) -> te.Tensor:
        """A placeholder for a Relax variable or constant, which it now stands for."""
        shape = [self.inside(extent) for extent in value.ty.shape.values]
        name = value.name if isinstance(value, relax.Var) else "constant"
        self.values[value] = te.placeholder(shape, str(value.ty.dtype), name=name)
        return self.values[value]

    def bind(self, var: Any, expression: Any) -> None:
        """Add a binding.

        Raises
        ------
        ArgumentError
            Tensor expressions do not say what it computes; the error names the op.
        """
        self.values[var] = self.value(expression)

    def value(self, expression: Any) -> Value:
        """The value of an expression over bound variables."""
        if isinstance(expression, relax.Var | tvm.ir.GenericConst) and expression in self.values:
            return self.values[expression]
        if isinstance(expression, tvm.ir.GenericConst):
            return _number(expression.value.numpy())
        if isinstance(expression, relax.Tuple):
            return [self.value(field) for field in expression.fields]
        if isinstance(expression, relax.TupleGetItem):
            return self.value(expression.tuple_value)[expression.index]
        if isinstance(expression, relax.Call) and isinstance(expression.op, tvm.ir.Op):
            return self._called(expression)
        raise ArgumentError(
            f"the body of a loop has a {type(expression).__name__}, which is no op with tensor "
            "expressions; take it out of the loop, or write it with other ops"
        )

    def inside(self, extent: Any) -> Any:
        """An extent of the program in terms of the composition's own variables."""

        def inner_variable(var: Any) -> Any:
            if identity(var) not in self._inside:
                inner = tirx.Var(var.name, self._dtype)
                self._inside[identity(var)] = inner
                self._outside[identity(inner)] = var
            return self._inside[identity(var)]

        return rename_extent(extent, self._dtype, inner_variable)

    def outside(self, extent: Any) -> Any:
        """An extent of a tensor expression in terms of the program's variables."""
        return rename_extent(extent, "int64", lambda var: self._outside[identity(var)])

    def _called(self, call: Any) -> Value:
        """The value of a call of an op, by its legalization or the kernel that it calls."""
        name = str(call.op.name)
        legalize = lowering_of(call.op)
        if name != "relax.call_tir" and legalize is None:
            raise ArgumentError(
                f"the body of a loop calls {name}, which has no tensor expressions; take it out of "
                "the loop, or write it with other ops"
            )
        try:
            if legalize is None:
                return self._compose_kernel(call)
            with StageBuilder(self) as builder:
                value = builder.value(legalize(builder, builder.normalize(call)))
        except GraphGradError as error:  # any other is a defect of the lowering
            raise ArgumentError(f"in {name}, which the body of a loop calls: {error}") from error
        # A split into one part is a tensor, where its expressions are a list.
        is_listed = isinstance(value, list) and not isinstance(call.ty, relax.TupleType)
        return value[0] if is_listed else value

    def _compose_kernel(self, call: Any) -> Value:
        """The tensor expressions of the kernel that is called."""
        func = self.kernels[call.args[0]]
        result = call.ty_args[0]
        has_several_results = isinstance(result, relax.TupleType)
        if any(isinstance(extent, tvm.ir.Var) for p in func.params for extent in p.shape):
            raise ArgumentError("a kernel of symbolic extents; give the loop static shapes")
        program = expressions_of(func, len(result.fields) if has_several_results else 1)
        value_of_parameter = {
            tensor_key(parameter): self.value(argument)
            for parameter, argument in zip(program.parameters, call.args[1].fields, strict=False)
            if parameter is not None
        }
        # No stage is rewritten: only the placeholders are replaced by what the call reads.
        outputs = rewritten(program.outputs, lambda op: None, value_of_parameter)
        outputs = _make_stepwise(outputs, list(value_of_parameter.values()))
        return outputs if has_several_results else outputs[0]


class StageBuilder:
    """The builder that a legalization is given for a BlockBuilder: its kernels become stages.

    Parameters
    ----------
    composition : Composition
        Has the tensor expressions of what the lowering reads.
    """

    def __init__(self, composition: Composition):
        self._composition = composition
        self._builder = relax.BlockBuilder()

    def __enter__(self) -> StageBuilder:
        begin_block(self._builder)
        return self

    def __exit__(self, *error: object) -> None:
        end_block(self._builder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def call_te(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> relax.Var:
        """A variable that stands for the tensor expressions that a function returns."""
        # Names and attributes of PrimFuncs are for kernels, and no argument of the function.
        named = {n: self._given(v) for n, v in keywords.items() if not n.startswith("primfunc_")}
        positional = list(map(self._given, args))
        result = function(*positional, **named)
        tensors = _make_stepwise(listed(result), _tensors_in([positional, *named.values()]))
        if isinstance(result, te.Tensor):
            var, value = relax.Var("stage", self._type(result)), tensors[0]
        else:
            types = list(map(self._type, tensors))
            var, value = relax.Var("stages", relax.TupleType(types)), tensors
        self._composition.values[var] = value
        return var

    def add_func(self, func: Any, name: str) -> Any:
        """The variable of a kernel that a legalization has written, and then calls."""
        variable = self._builder.add_func(func, name)
        self._composition.kernels[variable] = self._builder.get()[variable]
        return variable

    def emit_te(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> relax.Var:
        """The variable of `call_te`: a stage needs no binding of its own."""
        return self.call_te(function, *args, **keywords)

    def value(self, expression: Any) -> Value:
        """The value of an expression that a legalization has written with this builder."""
        expression = self._builder.normalize(expression)
        # A legalization may emit ops, which are bindings of the builder: these are composed first.
        for leaf in variables_read_by(expression):
            if isinstance(leaf, relax.Var) and leaf not in self._composition.values:
                self._composition.values[leaf] = self.value(self._builder.lookup_binding(leaf))
        return self._composition.value(expression)

    def _given(self, argument: Any) -> Any:
        """An argument as a function of tensor expressions takes it: tensors for Relax values."""
        if isinstance(argument, list | tuple | tvm_ffi.Array):
            values = [self._extent(item) for item in argument]
            return tuple(values) if isinstance(argument, tuple) else values
        if isinstance(argument, relax.ShapeExpr):
            return [self._composition.inside(extent) for extent in argument.values]
        if isinstance(argument, tirx.IntImm):
            return argument  # no part of a shape, but an operand with a dtype of its own
        if tvm.ir.is_prim_expr(argument):
            return self._composition.inside(argument)
        return self.value(argument) if isinstance(argument, relax.Expr) else argument

    def _extent(self, item: Any) -> Any:
        """An item of a list, which is an extent or a position if it is a number."""
        is_number = isinstance(item, tirx.IntImm)
        return self._composition.inside(item) if is_number else self._given(item)

    def _type(self, tensor: te.Tensor) -> relax.TensorType:
        shape = [self._composition.outside(extent) for extent in tensor.shape]
        return relax.TensorType(shape, str(tensor.dtype))


def variables_read_by(expression: Any) -> Iterator[Any]:
    """Yield the variables and constants that an expression reads as data."""
    if isinstance(expression, relax.Var | tvm.ir.GenericConst):
        if not tvm.ir.is_prim_expr(expression):
            yield expression
    elif isinstance(expression, relax.TupleGetItem):
        yield from variables_read_by(expression.tuple_value)
    elif isinstance(expression, relax.Tuple | relax.Call):
        is_tuple = isinstance(expression, relax.Tuple)
        for operand in expression.fields if is_tuple else expression.args:
            yield from variables_read_by(operand)
    elif isinstance(expression, relax.If):
        yield from relax.analysis.free_vars(relax.SeqExpr([], expression))


def _tensors_in(arguments: Any) -> list[te.Tensor]:
    """The tensors among the arguments of a function of tensor expressions."""
    if isinstance(arguments, list | tuple):
        return [tensor for item in arguments for tensor in _tensors_in(item)]
    return [arguments] if isinstance(arguments, te.Tensor) else []


def _make_stepwise(outputs: Sequence[te.Tensor], read: Sequence[te.Tensor]) -> list[te.Tensor]:
    """The outputs of one op by stages that a loop can compute for a single step.

    Raises
    ------
    ArgumentError
        There are no such stages: one computes all elements at once, as a sort does.
    """
    tensors = by_other_stages(outputs, read)
    for stage in operations(*tensors, above=read):
        if isinstance(stage, te.ExternOp) and not scatters_of(stage):
            raise ArgumentError(
                f"its stage {stage.name} cannot be part of a loop, because it is no tensor "
                "expression; take the op out of the loop, or write it with other ops"
            )
    return tensors


def _number(array: Any) -> te.Tensor:
    """A constant of one element as a stage."""
    if array.size != 1:
        raise ArgumentError(f"a constant of shape {array.shape}; make it an argument of the op")
    value = tirx.const(array.item(), str(array.dtype))
    return te.compute(array.shape, lambda *_: value, name="number")
