"""The transform of a program to mixed precision, before it is differentiated.

It inserts casts, and nothing else: the gradient of a cast is a cast, so the backward pass of an op
is in the precision of its forward pass. `policy.py` says what each op is computed in.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from ..errors import ArgumentError
from ..ir.branches import branch_programs
from ..ir.kernel_calls import arguments_of, is_kernel_call
from ..ir.program import Program, substitute, variables_in
from ..ir.provenance import read
from ..memory.effect_order import may_write
from ..tvm_fixes.hooks import change_attributes
from .choice import FULL, Precision
from .loops import round_products
from .policy import POLICIES, Policy

_ASTYPE = tvm.ir.Op.get("relax.astype")


def mix_precision(
    program: Program,
    precision: Precision,
    weights: Collection[str] = (),
    keep: Collection[str] = (),
) -> Program:
    """A program of which some ops compute in fewer bits; its parameters and results are as before.

    Parameters
    ----------
    program : Program
        Not changed.
    precision : Precision
    weights : collection of str
        Names of parameters that are weights: where one meets a rounded value, as a bias does, it is
        rounded. Others, such as inputs and masks, keep what they meet in float32.
    keep : collection of str
        Names of values that stay in the dtype that the model has them in, because someone asks for
        them or their gradients.

    Raises
    ------
    ArgumentError
        The program overwrites memory: a tensor that is overwritten cannot exist in two precisions.
        Or the precision names a node that it does not have.
    """
    if not precision.is_mixed:
        return program
    precision.check_nodes(_node_names(program))
    if may_write(program.body()):
        raise ArgumentError(
            f"precision={precision.dtype!r}: {program.name!r} overwrites memory, and what is "
            "overwritten cannot exist in two precisions; use precision='float32'"
        )
    return _Rewriting(program, precision, weights, keep).program()


def _node_names(program: Program) -> set[str]:
    """The names of the ONNX nodes that a program computes, in branches too."""
    names = {read(value.span).node for _, value in program.bindings}
    inner = [
        _node_names(branch)
        for _, value in program.bindings
        if isinstance(value, relax.If)
        for branch in branch_programs(program, value)
    ]
    return {name for name in names if name is not None}.union(*inner)


@dataclass
class _Value:
    """A tensor of the old program, in those dtypes in which the new one has it.

    Attributes
    ----------
    name, declared : str
        Its name and its dtype in the old program.
    own : relax expression
        As it was computed.
    is_weight : bool
        Whether it is made of weights and constants alone.
    fits : bool
        Whether it can be rounded without becoming infinite or zero, as far as is known.
    preferred : str
        The dtype in which ops that follow their operands take it.
    casts : dict
        From dtypes to expressions.
    """

    name: str
    declared: str
    own: Any
    is_weight: bool
    fits: bool
    preferred: str
    casts: dict[str, Any] = field(default_factory=dict)


class _Rewriting:
    """One walk over the bindings of a program."""

    def __init__(
        self,
        program: Program,
        precision: Precision,
        weights: Collection[str],
        keep: Collection[str],
        outside: _Rewriting | None = None,
    ):
        self._program = program
        self._precision = precision
        self._low = precision.dtype
        self._keep = set(keep)
        # A branch shares both with what is outside of it; the builder knows the kernels, so that
        # new ones get names of their own.
        self._kernels: dict[Any, Any] = (
            dict(program.kernels) if outside is None else outside._kernels
        )
        self._builder: relax.BlockBuilder = (
            relax.BlockBuilder(tvm.IRModule(self._kernels)) if outside is None else outside._builder
        )
        self._bound: list[tuple[Any, Any]] = []
        self._span: Any = None
        # By variable: a `_Value` of a tensor, a list of those of a tuple, or the expression of
        # anything else.
        self._values: dict[Any, Any] = {
            param: self._entry(param, param, param.name in weights) for param in program.params
        }

    def program(self) -> Program:
        """The new program."""
        for var, value in self._program.bindings:
            # Casts that this binding causes are attributed to its ONNX node.
            self._span = getattr(value, "span", None)
            self._values[var] = self._rewritten(var, value)
        result = self._as_declared(self._program.result)
        renamed = {
            old: entry.own if isinstance(entry, _Value) else new
            for old, new in self._program.renamed.items()
            for entry in [self._values.get(new)]
        }
        return replace(
            self._program,
            bindings=self._bound,
            result=result,
            renamed=renamed,
            kernels=self._kernels,
            derived={},
        )

    def _rewritten(self, var: Any, value: Any) -> Any:
        """Write the binding of a variable; return the variable's entry in `_values`."""
        if isinstance(value, relax.Var | relax.Tuple | relax.TupleGetItem | GenericConst):
            return self._renamed(var, value)
        if isinstance(value, relax.If):
            return self._branches(var, value)
        loop = self._loop(value)
        if loop is not None:
            return self._as_before(var, *loop)
        policy = self._policy(value)
        if policy is Policy.HIGH:
            return self._unchanged(var, value)
        operands = [self._operand(argument) for argument in value.args]
        tensors = list(_tensors(operands))
        dtype = self._dtype_of(policy, tensors)
        call = _with_result_in(value, [self._in_dtype(x, dtype) for x in operands], dtype)
        entry = self._bind(var, self._builder.normalize(call), tensors)
        if policy is Policy.INNER:
            first = entry[0] if isinstance(entry, list) else entry
            first.preferred = tensors[0].preferred
        return entry

    def _renamed(self, var: Any, value: Any) -> Any:
        """The entry of a variable that stands for another value, or for a part of one."""
        if isinstance(value, relax.TupleGetItem):
            parts = self._operand(value.tuple_value)
            if not isinstance(parts, list):
                return self._unchanged(var, value)
            entry = parts[value.index]
            if isinstance(entry, _Value) and isinstance(entry.own, relax.TupleGetItem):
                entry.name = var.name
                self._settle(entry)
        else:
            entry = self._operand(value)
        if not isinstance(entry, _Value) or var.name not in self._keep:
            return entry
        # Asked for by its name, which a binding must have.
        kept = relax.Var(var.name, var.ty)
        self._bound.append((kept, self._in_dtype(entry, entry.declared)))
        return replace(entry, name=var.name, own=kept, casts={})

    def _policy(self, value: Any) -> Policy:
        """The policy of a binding: that of its op, unless its node has one of its own."""
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return Policy.HIGH
        if value.op == _ASTYPE and _dtype(value.ty) == _dtype(value.args[0].ty) == FULL:
            return Policy.FOLLOW  # a cast that changes nothing
        policy = POLICIES.get(value.op.name)
        chosen = self._chosen(value)
        if policy is None or chosen == FULL:
            return Policy.HIGH
        if chosen is None or policy is Policy.INNER:
            return policy
        return Policy.LOW

    def _chosen(self, value: Any) -> str | None:
        """The dtype that the user has chosen for the ONNX node of a value."""
        return self._precision.nodes.get(read(value.span).node or "")

    def _loop(self, value: Any) -> tuple[Any, list[_Value]] | None:
        """The call of a loop with its products rounded, and what it reads; None of others."""
        kernel = self._kernels.get(value.args[0]) if is_kernel_call(value) else None
        if kernel is None or self._chosen(value) == FULL:
            return None
        outputs = len(value.ty.fields) if isinstance(value.ty, relax.TupleType) else 1
        rounded = round_products(kernel, outputs, self._low)
        if rounded is None:
            return None
        operands = [self._operand(argument) for argument in arguments_of(value)]
        arguments = [
            self._in_dtype(operands[number], self._low if is_rounded else FULL)
            for number, is_rounded in rounded.inputs
        ]
        variable = self._builder.add_func(rounded.kernel, value.args[0].name_hint)
        self._kernels[variable] = rounded.kernel
        given = [variable, relax.Tuple(arguments)]
        call = relax.Call(value.op, given, value.attrs, value.ty_args, value.span)
        return call, list(_tensors(operands))

    def _branches(self, var: Any, value: relax.If) -> Any:
        """Bind an If whose branches are rewritten; return the entry of its variable."""
        branches = [self._branch(branch) for branch in branch_programs(self._program, value)]
        tensors = list(_tensors([self._values[x] for x in variables_in(value)]))
        condition = self._as_declared(value.cond)
        return self._as_before(var, relax.If(condition, *branches, value.span), tensors)

    def _branch(self, branch: Program) -> relax.SeqExpr:
        """A branch, whose results have the dtypes that they had."""
        inner = _Rewriting(replace(branch, dataflow=False), self._precision, (), (), self)
        # Outside of a branch, nobody can read a cast that it makes: it notes them in copies.
        inner._values = {param: _apart(self._values[param]) for param in branch.params}
        return inner.program().body()

    def _dtype_of(self, policy: Policy, tensors: Sequence[_Value]) -> str:
        """The dtype in which an op of some operands computes."""
        if policy is not Policy.FOLLOW:
            return self._low if policy is Policy.LOW else FULL
        floats = [x for x in tensors if x.declared == FULL]
        # Weights and numbers follow what they meet; among themselves they are equals.
        deciding = [x for x in floats if not x.is_weight] or floats
        is_low = deciding and all(x.preferred == self._low for x in deciding)
        return self._low if is_low and all(x.fits for x in floats) else FULL

    def _unchanged(self, var: Any, value: Any) -> Any:
        """Bind a value of operands as the model has them."""
        names = {x: self._as_declared(x) for x in variables_in(value)}
        tensors = list(_tensors([self._values[x] for x in names]))
        if not isinstance(value, relax.MatchCast):
            return self._as_before(var, substitute(value, names), tensors)
        source = substitute(value.value, names)
        self._bound.append((var, relax.MatchCast(var, source, value.ty)))
        return self._entry(var, var, *_made_of(tensors))

    def _as_before(self, var: Any, value: Any, operands: Sequence[_Value]) -> Any:
        """Bind a variable to a value of the type that it had; return the variable's entry."""
        self._bound.append((var, self._builder.normalize(value)))
        return self._entry(var, var, *_made_of(operands))

    def _bind(self, var: Any, call: Any, operands: Sequence[_Value]) -> Any:
        """Bind a new call; return the entry of the variable that it takes the place of."""
        is_kept = var.name in self._keep and _dtype(call.ty) != _dtype(var.ty)
        computed = relax.Var(f"{var.name}.{self._low}" if is_kept else var.name, call.ty)
        self._bound.append((computed, call))
        entry = self._entry(var, computed, *_made_of(operands))
        if not is_kept:
            return entry
        kept = relax.Var(var.name, var.ty)
        self._bound.append((kept, self._cast(computed, entry.declared)))
        # All that reads the value reads the kept one, with respect to which a gradient is asked.
        return replace(entry, own=kept)

    def _entry(self, var: Any, expr: Any, is_weight: bool, fits: bool = True) -> Any:
        """The entry in `_values` of a variable whose value the new program has as `expr`."""
        if isinstance(expr.ty, relax.TupleType):
            return [
                self._entry(
                    relax.Var(f"{var.name}.{index}", declared),
                    self._builder.normalize(relax.TupleGetItem(expr, index)),
                    is_weight,
                    fits,
                )
                for index, declared in enumerate(var.ty.fields)
            ]
        if not isinstance(expr.ty, relax.TensorType):
            return expr
        return _Value(var.name, _dtype(var.ty), expr, is_weight, fits, _dtype(expr.ty))

    def _operand(self, expr: Any) -> Any:
        """The entry of an expression of the old program."""
        if isinstance(expr, relax.Var):
            return self._values[expr]
        if isinstance(expr, relax.Tuple):
            return [self._operand(item) for item in expr.fields]
        if isinstance(expr, GenericConst):
            dtype = _dtype(expr.ty)
            fits = dtype != FULL or _fits(expr.value.numpy(), self._low)
            return _Value("constant", dtype, expr, True, fits, dtype)
        return expr

    def _as_declared(self, expr: Any) -> Any:
        """An expression of the old program in the new one, in the dtypes that the old one has."""
        return self._in_dtype(self._operand(expr), FULL)

    def _in_dtype(self, operand: Any, dtype: str) -> Any:
        """The expression of an operand; tensors that were float32 are given in a dtype."""
        if isinstance(operand, list):
            return relax.Tuple([self._in_dtype(item, dtype) for item in operand])
        if not isinstance(operand, _Value):
            return operand
        self._settle(operand)
        if operand.declared != FULL or _dtype(operand.own.ty) == dtype:
            return operand.own
        if dtype not in operand.casts:
            operand.casts[dtype] = self._converted(operand, dtype)
        return operand.casts[dtype]

    def _settle(self, value: _Value) -> None:
        """Bind a part of a tuple that is first asked for."""
        if isinstance(value.own, relax.TupleGetItem):
            var = relax.Var(value.name, value.own.ty)
            self._bound.append((var, value.own))
            value.own = var

    def _converted(self, operand: _Value, dtype: str) -> Any:
        """A value in another dtype, computed once."""
        if isinstance(operand.own, GenericConst):
            return relax.const(operand.own.value.numpy().astype(dtype))
        cast = self._cast(operand.own, dtype)
        var = relax.Var(f"{operand.name}.{dtype}", cast.ty)
        self._bound.append((var, cast))
        return var

    def _cast(self, expr: Any, dtype: str) -> Any:
        cast = relax.op.astype(expr, dtype)
        return self._builder.normalize(
            relax.Call(cast.op, cast.args, cast.attrs, cast.ty_args, self._span)
        )


def _fits(array: np.ndarray, dtype: str) -> bool:
    """Whether rounding float32 numbers to a dtype makes none infinite and none zero."""
    with np.errstate(over="ignore"):
        rounded = array.astype(dtype).astype(array.dtype)
    changes = (np.isfinite(array) & ~np.isfinite(rounded)) | ((array != 0) & (rounded == 0))
    return not changes.any()


def _apart(entry: Any) -> Any:
    """A copy of an entry of `_Rewriting`."""
    if isinstance(entry, list):
        return [_apart(part) for part in entry]
    return replace(entry, casts=dict(entry.casts)) if isinstance(entry, _Value) else entry


def _made_of(operands: Sequence[_Value]) -> tuple[bool, bool]:
    """Whether what is made of some operands is a weight, and whether it fits."""
    is_weight = all(x.is_weight for x in operands)
    return is_weight, not is_weight or all(x.fits for x in operands)


def _with_result_in(call: Any, arguments: Sequence[Any], dtype: str) -> Any:
    """A call of other arguments, whose result has a dtype where it says one."""
    attributes = call.attrs
    if str(getattr(attributes, "out_dtype", "") or "") == FULL:
        attributes = change_attributes(
            attributes, lambda name, value: dtype if name == "out_dtype" else value
        )
    return relax.Call(call.op, list(arguments), attributes, call.ty_args, call.span)


def _tensors(operands: Sequence[Any]) -> Any:
    """Yield the tensors among operands, and those in tuples."""
    for operand in operands:
        if isinstance(operand, _Value):
            yield operand
        elif isinstance(operand, list):
            yield from _tensors(operand)


def _dtype(ty: Any) -> str:
    return str(ty.dtype) if isinstance(ty, relax.TensorType) else ""
