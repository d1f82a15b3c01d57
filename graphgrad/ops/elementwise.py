"""Elementwise ops: their lowerings and layout rules.

Stock ones turn NaN into numbers where they compare, know no half precision of many functions, and
lose the digits of small results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from ..ir.kernel_structure import static
from ..ir.tensor import Tensor, broadcast_shape, has_shape, is_float, type_shape
from ..layout.rule import LaidOut, Site, broadcast, cheapest_order, layout_rule
from ..layout.value import Value
from .define import call_op, define_op
from .legalize import Legalization, legalization, lower_half_in_float32


def larger(a: Any, b: Any) -> Any:
    """The larger of two elements, or NaN if one of them is: ``tirx.max`` may drop it."""
    if not is_float_element(a):
        return tirx.max(a, b)
    # Both comparisons fail only where one is NaN, and then the sum is NaN.
    return tirx.Select(a > b, a, tirx.Select(b >= a, b, a + b))


def smaller(a: Any, b: Any) -> Any:
    """The smaller of two elements, or NaN if one of them is: ``tirx.min`` may drop it."""
    if not is_float_element(a):
        return tirx.min(a, b)
    return tirx.Select(a < b, a, tirx.Select(b <= a, b, a + b))


def infinity(dtype: str) -> Any:
    """The greatest number of a dtype, which is the least of none."""
    return tirx.const(float("inf"), dtype) if is_float(dtype) else tirx.max_value(dtype)


def minus_infinity(dtype: str) -> Any:
    """The least number of a dtype, which is the greatest of none."""
    return tirx.const(float("-inf"), dtype) if is_float(dtype) else tirx.min_value(dtype)


def is_float_element(value: Any) -> bool:
    """Whether an element of a tensor expression is a float."""
    return is_float(str(value.ty).removeprefix("T."))


def cast(x: te.Tensor, dtype: str) -> te.Tensor:
    """A tensor in another dtype; itself if it has that."""
    if str(x.dtype) == dtype:
        return x
    return te.compute(x.shape, lambda *i: x(*i).astype(dtype), name="cast")


def mapped(
    builder: relax.BlockBuilder, x: Any, element: Callable[[Any], Any], name: str, hint: str = ""
) -> Any:
    """The call of a kernel that computes each element of its result from one of `x`."""

    def expression(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: element(x(*i)), name=name)

    return builder.call_te(expression, x, primfunc_name_hint=hint or name)


Element = Callable[..., Any]
"""Builds the expression of an output element from those of the operands."""


def _lower(op: str, element: Element) -> None:
    """Lower an op of tensors that broadcast, element by element."""

    def expression(*operands: Any) -> te.Tensor:
        # Some operands may be numbers, of scalar constants.
        tensors = [operand for operand in operands if isinstance(operand, te.Tensor)]
        shape: Sequence[Any] = tensors[0].shape
        for tensor in tensors[1:]:
            shape = _broadcast_shape(shape, tensor.shape)

        def element_at(*index: Any) -> Any:
            return element(*(_read(operand, index) for operand in operands))

        return te.compute(shape, element_at, name=element.__name__.strip("_"))

    @legalization(op)
    def lower(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        hint = "tir_" + op.removeprefix("relax.")  # not the name of a function of libc
        return builder.call_te(expression, *_operands(call), primfunc_name_hint=hint)


def _operands(call: relax.Call) -> list[Any]:
    """The arguments, with numbers in the place of scalar constants.

    One of them stays a tensor, even if all are scalar constants.
    """
    numbers = [_number(argument) for argument in call.args]
    if all(number is not None for number in numbers):
        numbers[0] = None
    pairs = zip(call.args, numbers, strict=True)
    return [argument if number is None else number for argument, number in pairs]


def _number(argument: Any) -> Any:
    """The number of a scalar constant; None for any other argument."""
    if not isinstance(argument, tvm.ir.GenericConst) or argument.ty.ndim != 0:
        return None
    return tirx.const(argument.value.numpy().item(), str(argument.ty.dtype))


def _broadcast_shape(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    rank = max(len(a), len(b))
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in (a, b)]
    return [y if static(x) == 1 else x for x, y in zip(*padded, strict=True)]


def _read(operand: Any, index: Sequence[Any]) -> Any:
    """The element of an operand that broadcasting puts at an index of the result."""
    if not isinstance(operand, te.Tensor):
        return operand
    operand_index = index[len(index) - len(operand.shape) :]
    return operand(
        *(0 if static(d) == 1 else i for d, i in zip(operand.shape, operand_index, strict=True))
    )


def _not(condition: Any) -> Any:
    """The negation of a condition.

    As ``Not`` it would be simplified into the opposite comparison, which is as false for NaN.
    """
    return tirx.Select(condition, tirx.const(False, "bool"), tirx.const(True, "bool"))


def _equal(a: Any, b: Any) -> Any:
    """Whether elements are equal; TVM would compare booleans as floats."""
    if str(a.ty.dtype) == "bool":
        a, b = a.astype("int8"), b.astype("int8")
    return tirx.EQ(a, b)


def _not_equal(a: Any, b: Any) -> Any:
    """Whether elements differ: NaN differs from everything, itself too; stock code says no."""
    return _not(_equal(a, b))


def _floor_mod(a: Any, b: Any) -> Any:
    """The remainder a − ⌊a / b⌋ b, made of the exact remainder that has the sign of a.

    By the formula the quotient would be rounded, and for an infinite b the product be 0 · ∞.
    """
    if not is_float_element(a):
        return tirx.floormod(a, b)
    remainder = tirx.truncmod(a, b)
    zero = tirx.const(0, str(remainder.ty.dtype))
    opposite = tirx.any(tirx.all(remainder < zero, b > zero), tirx.all(remainder > zero, b < zero))
    return tirx.Select(opposite, remainder + b, remainder)


def _sign(x: Any) -> Any:
    """1, 0 or −1, and 0 of NaN; stock code wants a −1 of dtypes that have none, too."""
    dtype = str(x.ty.dtype)
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
    positive = tirx.Select(x > zero, one, zero)
    if dtype.startswith("uint"):
        return positive
    return tirx.Select(x < zero, tirx.const(-1, dtype), positive)


def _power(a: Any, b: Any) -> Any:
    """The power aᵇ; stock code knows no integers."""
    if not is_float_element(a):
        power = _pow(a.astype("float64"), b.astype("float64"))
        return power.astype(str(a.ty.dtype))
    if isinstance(b, tirx.FloatImm) and b.value in (2.0, 3.0):
        return a * a if b.value == 2.0 else a * a * a
    return _pow(a, b)


def _pow(a: Any, b: Any) -> Any:
    return tirx.call_intrin(a.ty, "tirx.pow", a, b)  # `tirx.power` warns of exponents from 3 on


def _fma(a: Any, b: Any, c: Any) -> Any:
    return a * b + c


def expm1(x: Any) -> Any:
    """exp(x) − 1 to the last digits, of an x that is not above 1."""
    one, bound = (tirx.const(value, str(x.ty.dtype)) for value in (1.0, -0.5))
    power = tirx.exp(x)
    # What the exponential has rounded off is a small change of its logarithm.
    return (
        power
        - one
        + tirx.Select(x < bound, tirx.const(0, str(x.ty.dtype)), power * (x - tirx.log(power)))
    )


def _log_add_exp(a: Any, b: Any) -> Any:
    """log(exp a + exp b), the larger one plus a logarithm between 0 and log 2."""
    high, low = tirx.Select(a >= b, a, b), tirx.Select(a >= b, b, a)
    zero = tirx.const(0, str(a.ty.dtype))
    # Of two equal infinities the difference would be NaN.
    infinity = tirx.const(float("inf"), str(a.ty.dtype))
    same_infinity = tirx.all(tirx.EQ(high, low), tirx.EQ(tirx.abs(high), infinity))
    difference = tirx.Select(same_infinity, zero, low - high)
    return high + tirx.log1p(tirx.exp(difference))


_ATANH_TERMS = tuple(1 / (2 * n + 1) for n in range(13))
"""Taylor coefficients of artanh(x) / x in powers of x²; float32 needs the first 6."""


def _atanh(x: Any) -> Any:
    """artanh x by its Taylor series where |x| is small.

    The stock form subtracts two numbers near 1 there, and loses the digits of the result.
    """
    dtype = str(x.ty.dtype)
    # Below it the omitted terms are less than 1e-8 of the result, in float64 than 1e-16.
    bound = tirx.const(0.25, dtype)
    terms = _ATANH_TERMS if dtype == "float64" else _ATANH_TERMS[:6]
    return tirx.Select(tirx.abs(x) < bound, x * polynomial(terms, x * x), tirx.atanh(x))


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Σ cᵢ xⁱ, by Horner's scheme."""
    *lower, total = (tirx.const(coefficient, str(x.ty.dtype)) for coefficient in coefficients)
    for coefficient in reversed(lower):
        total = total * x + coefficient
    return total


_lower("relax.atanh", _atanh)
_lower("relax.equal", _equal)
_lower("relax.ewise_fma", _fma)
_lower("relax.floor_mod", _floor_mod)
_lower("relax.log_add_exp", _log_add_exp)
_lower("relax.logical_not", _not)
_lower("relax.maximum", larger)
_lower("relax.minimum", smaller)
_lower("relax.not_equal", _not_equal)
_lower("relax.power", _power)
_lower("relax.sign", _sign)


@legalization("relax.clip")
def clip(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower clip so that NaN stays NaN; the upper bound wins where the bounds are crossed."""
    x, low, high = call.args
    if not is_float(str(x.ty.dtype)):
        return builder.call_te(topi.clip, x, low, high, primfunc_name_hint="tir_clip")
    dtype = str(x.ty.dtype)
    lower, upper = (tirx.const(float(bound.value), dtype) for bound in (low, high))

    def element(value: Any) -> Any:
        raised = tirx.Select(value < lower, lower, value)
        return tirx.Select(raised > upper, upper, raised)

    return mapped(builder, x, element, "clip", "tir_clip")


def masked_product(ct: Tensor, factor: Tensor) -> Tensor:
    """The product ct · factor, and 0 where ct is 0 and the factor is infinite or NaN.

    So a mask that has made the cotangent zero also excludes the derivative. Everywhere else it is
    the product: a cotangent that happens to be 0 still has a derivative, which second order asks
    for.
    """
    return ct.emitter.emit(call_op(_MASKED_PRODUCT, [ct.expr, factor.expr]))


def _masked_product_type(call: relax.Call) -> Any:
    ct, factor = (argument.ty for argument in call.args)
    return relax.TensorType(broadcast_shape(type_shape(ct), type_shape(factor)), ct.dtype)


def _masked_product_expression(_: relax.Call, ct: te.Tensor, factor: te.Tensor) -> te.Tensor:
    """The product of two tensors that broadcast, and 0 where it is 0 · ∞ or 0 · NaN."""

    def element(*index: Any) -> Any:
        a, b = _read(ct, index), _read(factor, index)
        zero = tirx.const(0.0, str(ct.dtype))
        # NaN is not below infinity.
        is_excluded = tirx.all(tirx.EQ(a, zero), _not(tirx.abs(b) < infinity(str(factor.dtype))))
        return tirx.Select(is_excluded, zero, a * b)

    return te.compute(_broadcast_shape(ct.shape, factor.shape), element, name="masked_product")


_MASKED_PRODUCT = define_op(
    "masked_product", ["ct", "factor"], _masked_product_type, _masked_product_expression
)


def _lower_fill(op: str) -> None:
    """Lower a tensor of one number, where that is not finite too, as stock code does not."""
    stock: Legalization = tvm.ir.Op.get(op).get_attr("FLegalize")

    @legalization(op)
    def lower(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        number = _number(call.args[1])
        is_finite = not isinstance(number, tirx.FloatImm) or math.isfinite(number.value)
        if is_finite or not has_shape(call.ty):
            return stock(builder, call)
        fill = tirx.const(number.value, str(call.ty.dtype))

        def expression(shape: list[Any]) -> te.Tensor:
            return te.compute(shape, lambda *_: fill, name="full")

        return builder.call_te(expression, call.ty.shape, primfunc_name_hint="tir_full")


_lower_fill("relax.full")
_lower_fill("relax.full_like")


def _lower_division(op: str, quotient: Callable[[Any], Any]) -> None:
    """Lower a division, by the number zero too, which TVM refuses to fold: it is a product with ∞.

    Parameters
    ----------
    op : str
    quotient : callable
        Makes the result of a product.
    """
    stock: Legalization = tvm.ir.Op.get(op).get_attr("FLegalize")

    @legalization(op)
    def lower(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        divisor = _number(call.args[1])
        if not isinstance(divisor, tirx.FloatImm) or divisor.value:
            return stock(builder, call)
        infinite = tirx.const(math.copysign(math.inf, divisor.value), str(call.ty.dtype))
        name = op.removeprefix("relax.")
        return mapped(builder, call.args[0], lambda x: quotient(x * infinite), name)


_lower_division("relax.divide", lambda product: product)
_lower_division("relax.floor_divide", tirx.floor)


lower_half_in_float32(
    *("relax.acos", "relax.acosh", "relax.asin", "relax.asinh", "relax.atan", "relax.atanh"),
    *("relax.atan2", "relax.cosh", "relax.ewise_fma", "relax.floor_mod", "relax.isfinite"),
    *("relax.isinf", "relax.isnan", "relax.log_add_exp", "relax.mod", "relax.power"),
    *("relax.sinh", "relax.tan", "relax.tanh"),
)


# fmt: off
_UNARY = [
    "abs", "acos", "acosh", "asin", "asinh", "astype", "atan", "atanh", "bitwise_not", "ceil",
    "clip", "cos", "cosh", "erf", "exp", "floor", "full_like", "isfinite", "isinf", "isnan",
    "log", "logical_not", "negative", "ones_like", "round", "rsqrt", "sigmoid", "sign", "sin",
    "sinh", "sqrt", "square", "tan", "tanh", "trunc", "zeros_like", "nn.gelu", "nn.gelu_tanh",
    "nn.leakyrelu", "nn.relu", "nn.selu", "nn.silu", "nn.softplus",
]
_BROADCASTING = [
    "add", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "divide", "equal", "ewise_fma",
    "floor_divide", "floor_mod", "greater", "greater_equal", "left_shift", "less", "less_equal",
    "log_add_exp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "mod",
    "multiply", "not_equal", "power", "right_shift", "subtract", "where",
]
# fmt: on


ELEMENTWISE = frozenset(f"relax.{name}" for name in [*_UNARY, *_BROADCASTING]) | {
    "graphgrad.masked_product"
}
"""Ops that compute each element of their result from one of each operand, which broadcast."""


@layout_rule(*ELEMENTWISE)
def elementwise_layout(site: Site) -> LaidOut | None:
    """Compute in the order that moves the fewest elements; small operands are reshaped to it."""
    tensors = [operand for operand in site.operands if isinstance(operand, Value)]
    order = cheapest_order(tensors, len(site.shape))
    if order is None:
        return None
    arguments = [
        broadcast(operand, order) if isinstance(operand, Value) else operand
        for operand in site.operands
    ]
    return site.passed(arguments, order)
