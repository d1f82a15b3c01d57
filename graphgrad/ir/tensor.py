"""Symbolic tensors: what gradient rules compute with.

A rule is given `Tensor` objects in place of Relax variables. They always know their type, take
Python numbers as operands (in the tensor's dtype, where a plain Relax expression asks for an
explicit constant), and are accepted by every function of ``relax.op``.

Each operation is emitted as one binding at once, so that nothing is computed twice when a rule
uses a value twice. Zeros and ones are the exception: they are kept as *fills* and emitted only if
something really needs them as a tensor, so that no dead ``zeros`` appear in the program.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from numbers import Number
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import _tensor_expr_overload
from tvm_ffi.core import ObjectConvertible

from ..errors import ArgumentError, RuleError

Dimension = Any
"""A Python int, or a TVM integer expression where the extent is symbolic."""


def dimension_text(dimension: Dimension) -> str:
    """A dimension as text for messages: ``2 * N``, not ``T.int64(2) * N``."""
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(dimension))


def same_dimension(a: Dimension, b: Dimension) -> bool:
    """Whether two extents are provably equal."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return tvm_ffi.structural_equal(a, b) or tvm.sym.Analyzer().can_prove_equal(a, b)


def same_shape(a: Sequence[Dimension], b: Sequence[Dimension]) -> bool:
    """Whether two shapes are provably equal."""
    return len(a) == len(b) and all(map(same_dimension, a, b))


def broadcast_shape(a: Sequence[Dimension], b: Sequence[Dimension]) -> list[Dimension]:
    """The shape of two broadcast operands; of two symbolic extents the first is taken."""
    rank = max(len(a), len(b))
    padded_a = [1] * (rank - len(a)) + list(a)
    padded_b = [1] * (rank - len(b)) + list(b)
    return [
        y if isinstance(x, int) and x == 1 else x for x, y in zip(padded_a, padded_b, strict=True)
    ]


def has_shape(ty: Any) -> bool:
    """Whether a type is that of a tensor with a known shape."""
    return isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)


def type_shape(ty: Any) -> list[Dimension]:
    """The shape of a tensor type: ints, and expressions where symbolic.

    Raises
    ------
    RuleError
        The type has no known shape.
    """
    if not has_shape(ty):
        raise RuleError(
            f"a gradient rule needs the shape of a value of type {ty}; give the function's "
            "parameters a shape (symbolic dimensions will do)"
        )
    return [int(d) if isinstance(d, tvm.tirx.IntImm) else d for d in ty.shape.values]


def is_float(dtype: str) -> bool:
    """Whether values of this dtype have cotangents."""
    return dtype.startswith(("float", "bfloat"))


@cache
def bits(dtype: str) -> int:
    """The width of a dtype in bits."""
    return int(tvm_ffi.dtype(dtype).bits)


def accumulator_dtype(dtype: str) -> str:
    """The dtype in which values of this dtype are summed."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


class Emitter:
    """Writes bindings into a BlockBuilder, each with the current span and name.

    Parameters
    ----------
    builder : relax.BlockBuilder
        A builder inside a function and a binding block.
    """

    def __init__(self, builder: relax.BlockBuilder):
        self.builder = builder
        self._span: Any = None
        self._name = ""

    @contextlib.contextmanager
    def at(self, span: Any, name: str) -> Iterator[None]:
        """Give the bindings emitted inside the ``with`` block this span and name hint."""
        saved = self._span, self._name
        self._span, self._name = span, name
        try:
            yield
        finally:
            self._span, self._name = saved

    def emit(self, expr: Any) -> Any:
        """Emit a Relax expression; return a `Tensor`, or a list of them where it is a tuple."""
        return self.lift(self.builder.emit(self._located(expr), self._name))

    def lift(self, expr: Any) -> Any:
        """Wrap a Relax variable or constant: a `Tensor`, or a list for a tuple of tensors.

        Values that are no tensors (shapes, scalars) are returned as they are.
        """
        ty = expr.ty
        if isinstance(ty, relax.TensorType):
            return Tensor(self, expr)
        if isinstance(ty, relax.TupleType):
            if isinstance(expr, relax.Tuple):
                return [self.lift(field) for field in expr.fields]
            return [self._element(expr, index) for index in range(len(ty.fields))]
        return expr

    def full(self, fill: float, shape: Sequence[Dimension], dtype: str) -> Tensor:
        """A constant tensor; it costs nothing until something needs it as a tensor."""
        return Tensor(self, None, fill=float(fill), ty=relax.TensorType(list(shape), dtype))

    def _element(self, expr: Any, index: int) -> Any:
        return self.lift(self.builder.emit(relax.TupleGetItem(expr, index), self._name))

    def _located(self, expr: Any) -> Any:
        """The expression with the current span on each call that has none."""
        if self._span is None or not isinstance(expr, relax.Call) or expr.span is not None:
            return expr
        arguments = [self._located(argument) for argument in expr.args]
        return relax.Call(expr.op, arguments, expr.attrs, expr.ty_args, self._span)


class Tensor(ObjectConvertible):
    """A tensor value of the program that is being written.

    Attributes
    ----------
    ty : relax.TensorType
    shape : list
        Ints, and TVM expressions where symbolic.
    dtype : str
    fill : float or None
        The value of every element, where it is known to be one number (zeros and ones).
    """

    __slots__ = ("_expr", "emitter", "fill", "ty")
    __array_ufunc__ = None  # so that an array on the left leaves an operator to this class

    def __init__(
        self, emitter: Emitter, expr: Any, *, fill: float | None = None, ty: Any | None = None
    ):
        self.emitter = emitter
        self._expr = expr
        self.fill = fill
        self.ty: Any = ty if expr is None else expr.ty

    @property
    def expr(self) -> Any:
        """The Relax expression of this value; a fill is emitted here, once."""
        if self._expr is None and self.fill is None:
            raise RuleError(
                "a linear rule must not read the values of its inputs, only their types"
            )
        if self._expr is None:
            shape, dtype = self.shape, self.dtype
            if self.fill in (0.0, 1.0):
                create = relax.op.zeros if self.fill == 0.0 else relax.op.ones
                call = create(shape, dtype)
            else:
                call = relax.op.full(shape, relax.const(self.fill, dtype), dtype)
            self._expr = self.emitter.emit(call)._expr
        return self._expr

    def asobject(self) -> Any:
        """The expression that functions of ``relax.op`` take in place of this tensor."""
        return self.expr

    @property
    def shape(self) -> list[Dimension]:
        """The extents: ints, and TVM expressions where symbolic."""
        return type_shape(self.ty)

    @property
    def dtype(self) -> str:
        """The name of the dtype, such as ``float32``."""
        return str(self.ty.dtype)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def astype(self, dtype: str) -> Tensor:
        """The value in another dtype; itself where it has that dtype already."""
        if dtype == self.dtype:
            return self
        if self.fill is not None:
            return self.emitter.full(self.fill, self.shape, dtype)
        return self.emitter.emit(relax.op.astype(self.expr, dtype))

    def __add__(self, other: Any) -> Tensor:
        other = self._operand(other)
        shape = broadcast_shape(self.shape, other.shape)
        if other.fill == 0.0 and same_shape(self.shape, shape):
            return self
        if self.fill == 0.0 and same_shape(other.shape, shape):
            return other
        return self._binary(relax.op.add, other)

    def __mul__(self, other: Any) -> Tensor:
        other = self._operand(other)
        shape = broadcast_shape(self.shape, other.shape)
        # Also where the other operand may be infinite: no contribution stays none.
        if 0.0 in (self.fill, other.fill):
            return self.emitter.full(0.0, shape, self.dtype)
        if other.fill == 1.0 and same_shape(self.shape, shape):
            return self
        if self.fill == 1.0 and same_shape(other.shape, shape):
            return other
        if other.fill == -1.0 and same_shape(self.shape, shape):
            return -self
        return self._binary(relax.op.multiply, other)

    def __sub__(self, other: Any) -> Tensor:
        other = self._operand(other)
        shape = broadcast_shape(self.shape, other.shape)
        if other.fill == 0.0 and same_shape(self.shape, shape):
            return self
        if self.fill == 0.0 and same_shape(other.shape, shape):
            return -other
        return self._binary(relax.op.subtract, other)

    def __truediv__(self, other: Any) -> Tensor:
        other = self._operand(other)
        if self.fill == 0.0:
            return self.emitter.full(0.0, broadcast_shape(self.shape, other.shape), self.dtype)
        if other.fill == 1.0 and same_shape(self.shape, broadcast_shape(self.shape, other.shape)):
            return self
        return self._binary(relax.op.divide, other)

    def __neg__(self) -> Tensor:
        if self.fill is not None:
            return self.emitter.full(-self.fill, self.shape, self.dtype)
        return self.emitter.emit(relax.op.negative(self.expr))

    def __radd__(self, other: Any) -> Tensor:
        return self._operand(other) + self

    def __rmul__(self, other: Any) -> Tensor:
        return self._operand(other) * self

    def __rsub__(self, other: Any) -> Tensor:
        return self._operand(other) - self

    def __rtruediv__(self, other: Any) -> Tensor:
        return self._operand(other) / self

    def __matmul__(self, other: Any) -> Tensor:
        """The matrix product; that of half precision is a float32."""
        other = self._operand(other)
        product = relax.op.matmul(self.expr, other.expr, accumulator_dtype(self.dtype))
        return self.emitter.emit(product)

    def __rmatmul__(self, other: Any) -> Tensor:
        return self._operand(other) @ self

    def _operand(self, other: Any) -> Tensor:
        """An operand as a `Tensor`.

        Raises
        ------
        ArgumentError
            It is none: an array, a tuple, a symbolic extent.
        """
        if isinstance(other, Number):
            return self.emitter.full(float(other), [], self.dtype)  # type: ignore[arg-type]
        if isinstance(other, relax.Expr) and not tvm.ir.is_prim_expr(other):
            is_call = isinstance(other, relax.Call | relax.TupleGetItem)
            other = self.emitter.emit(other) if is_call else self.emitter.lift(other)
        if not isinstance(other, Tensor):
            raise ArgumentError(
                f"{self} was given an operand of type {type(other).__name__}; give a tensor, a "
                "number or a relax expression (of an array, relax.const(array, dtype))"
            )
        return other

    def _binary(self, function: Callable[[Any, Any], Any], other: Any) -> Tensor:
        other = self._operand(other)
        return self.emitter.emit(function(_operand_expr(self), _operand_expr(other)))

    def __repr__(self) -> str:
        return f"Tensor({self.shape}, {self.dtype})"


def _operand_expr(value: Tensor) -> Any:
    """The expression of an operand that may broadcast: a scalar fill is a constant."""
    if value.fill is not None and not value.shape:
        return relax.const(value.fill, value.dtype)
    return value.expr


def expression_of(value: Any) -> Any:
    """A value as a Relax expression: of a `Tensor` its own, of a list or tuple a Relax tuple."""
    if isinstance(value, list | tuple):
        return relax.Tuple([expression_of(item) for item in value])
    return value.expr if isinstance(value, Tensor) else value


def operand(value: Any, like: Tensor) -> Any:
    """A Relax operand for a broadcasting op: a tensor, a number, or a Relax expression."""
    if isinstance(value, Tensor):
        return _operand_expr(value)
    if isinstance(value, Number):
        return relax.const(value, like.dtype)
    return value


def _leave_to_tensors(name: str) -> None:
    """Let an operator of Relax expressions hand a `Tensor` on its right to the tensor's own method.

    For a right operand that is no Relax expression, TVM raises a TypeError. Python tries the
    reflected method of that operand only if NotImplemented is returned.
    """
    of_expressions = getattr(_tensor_expr_overload, name)

    def operator(left: Any, right: Any) -> Any:
        return NotImplemented if isinstance(right, Tensor) else of_expressions(left, right)

    setattr(_tensor_expr_overload, name, operator)


for _name in ("__add__", "__mul__", "__sub__", "__truediv__"):
    _leave_to_tensors(_name)
