"""Exact arithmetic on the elements of known values: numbers and expressions of dimensions.

What the operators of an ONNX graph would compute at run time is computed at import, as a number or
an expression of the symbolic dimensions that is right for all of their sizes. Where there is none,
or it cannot be proved, `NotKnownError` is raised, and the value is computed at run time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from ..ir.kernel_structure import static
from ..ir.visits import nodes_in
from .known_values import NotKnownError, Ratio, as_int64, as_ratio, integral, is_symbolic

_MAX_DIMENSION = 2**31

_INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Min": min,
    "Max": max,
    "And": operator.and_,
    "Or": operator.or_,
    "Xor": operator.xor,
    "Pow": operator.pow,
}
_FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.truediv,
    "Min": np.minimum,
    "Max": np.maximum,
    "Pow": operator.pow,
}
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Equal": operator.eq,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
}
_ROUNDINGS: dict[str, Callable[[Any], Any]] = {
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
}


class ExactArithmetic:
    """Operations on ints, floats and expressions of symbolic dimensions.

    Every method raises `NotKnownError` where the result is not known exactly.

    Parameters
    ----------
    dimensions : list of tirx.Var
        The symbolic dimensions. None of them is negative.
    """

    def __init__(self, dimensions: list[Any]):
        self._analyzer = tvm.sym.Analyzer()
        for variable in dimensions:
            self._analyzer.bind(variable, tvm.ir.Range.from_min_extent(0, _MAX_DIMENSION))

    def binary(self, op_type: str, a: Any, b: Any) -> Any:
        """The result of an ONNX operator of two operands of one dtype."""
        if is_symbolic(a) or is_symbolic(b):
            if isinstance(a, Ratio | np.floating) or isinstance(b, Ratio | np.floating):
                return self._ratio(op_type, as_ratio(a), as_ratio(b))
            return self._symbolic(op_type, a, b)
        if op_type in COMPARISONS:
            return bool(COMPARISONS[op_type](a, b))
        if isinstance(a, np.floating):
            if op_type not in _FLOATS:
                raise NotKnownError
            # `type(a)` rounds to the dtype of the operands, as the operator would.
            with np.errstate(all="ignore"):
                return type(a)(_FLOATS[op_type](a, b))
        if op_type in ("Div", "Mod"):
            return _quotient(a, b) if op_type == "Div" else _remainder(a, b)
        # A negative or broken power of an integer is no integer, and its dtype has no other.
        if op_type not in _INTEGERS or isinstance(b, np.floating) or (op_type == "Pow" and b < 0):
            raise NotKnownError
        return _INTEGERS[op_type](a, b)

    def unary(self, op_type: str, x: Any) -> Any:
        """The result of an ONNX operator of one operand."""
        if op_type == "Neg":
            return -x if not is_symbolic(x) else self.binary("Sub", _zero_like(x), x)
        if op_type == "Not":
            return not x
        if op_type == "Abs":
            return self._absolute(x)
        if isinstance(x, Ratio):
            return self._rounded(op_type, x)
        if not isinstance(x, np.floating):
            raise NotKnownError
        with np.errstate(all="ignore"):
            return type(x)(_ROUNDINGS[op_type](x))

    def cast(self, x: Any, dtype: np.dtype) -> Any:
        """An element in another dtype; a float loses its fraction in an integer one."""
        if dtype.kind == "f":
            return Ratio(x, 1) if integral(x) is not None and is_symbolic(x) else _float(x, dtype)
        if dtype.kind == "b":
            if not is_symbolic(x):
                return bool(x)
            return not self.binary("Equal", x, _zero_like(x))
        if isinstance(x, Ratio):
            return self._truncated(x.numerator, x.denominator)
        if isinstance(x, np.floating) and not np.isfinite(x):
            raise NotKnownError
        return x if is_symbolic(x) else int(x)

    def _symbolic(self, op_type: str, a: Any, b: Any) -> Any:
        """The result for two integers that may depend on symbolic dimensions."""
        if op_type in COMPARISONS:
            return self._compared(op_type, a, b)
        if op_type == "Div":
            return self._truncated(a, b)
        if op_type == "Mod":
            self._check_positive(b)
            return self._simplified(tvm.tirx.floormod(a, b))
        if op_type in ("Min", "Max"):
            choose = tirx.min if op_type == "Min" else tirx.max
            return self._simplified(choose(as_int64(a), as_int64(b)))
        if op_type in ("Add", "Sub", "Mul"):
            return self._simplified(_INTEGERS[op_type](a, b))
        raise NotKnownError

    def _ratio(self, op_type: str, a: Ratio, b: Ratio) -> Any:
        """The result for two ratios, over their common denominator."""
        left = self._symbolic("Mul", as_int64(a.numerator), b.denominator)
        right = self._symbolic("Mul", as_int64(b.numerator), a.denominator)
        denominator = a.denominator * b.denominator
        if op_type in COMPARISONS:
            return self._compared(op_type, left, right)
        if op_type == "Mul":
            product = self._symbolic("Mul", as_int64(a.numerator), b.numerator)
            return self._reduced(product, denominator)
        if op_type == "Div":
            constant_quotient = self._factor(left, right)
            if constant_quotient is not None:
                return Ratio(constant_quotient.numerator, constant_quotient.denominator)
            # `left / right`, of numerators over the common denominator, which cancels.
            divisor = static(right)
            if divisor is None or divisor <= 0:
                raise NotKnownError
            return self._reduced(left, divisor)
        if op_type not in ("Add", "Sub", "Min", "Max"):
            raise NotKnownError
        return self._reduced(self._symbolic(op_type, left, right), denominator)

    def _factor(self, a: Any, b: Any) -> Fraction | None:
        """The constant a / b, if a is the same multiple of b for all dimensions; else None.

        It is guessed from one size of the dimensions, and then proved.
        """
        samples = [self._sample(value) for value in (a, b)]
        if 0 in samples:
            return None
        factor = Fraction(*samples)
        left, right = a * factor.denominator, b * factor.numerator
        return factor if self._analyzer.can_prove_equal(left, right) else None

    def _sample(self, value: Any) -> int:
        """An expression's value where every dimension is 60; 0 if it is not a number."""
        substituted = tvm_ffi.structural_map(
            as_int64(value), (tvm.ir.Var, lambda var: tirx.IntImm("int64", 60))
        )
        return static(self._analyzer.simplify(substituted)) or 0

    def _reduced(self, numerator: Any, denominator: int) -> Ratio:
        """A ratio in lowest terms, as far as that can be proved."""
        number = static(numerator)
        if number is not None:
            fraction = Fraction(number, denominator)
            return Ratio(fraction.numerator, fraction.denominator)
        remainder = self._analyzer.simplify(tirx.floormod(numerator, denominator))
        if static(remainder) == 0:
            return Ratio(self._analyzer.simplify(tirx.floordiv(numerator, denominator)), 1)
        if denominator > 1024:  # the limit of `as_ratio`
            raise NotKnownError
        return Ratio(numerator, denominator)

    def _rounded(self, op_type: str, x: Ratio) -> Ratio:
        if op_type not in ("Floor", "Ceil"):
            raise NotKnownError
        # ⌈n / d⌉ = ⌊(n + d − 1) / d⌋
        rounding_term = x.denominator - 1 if op_type == "Ceil" else 0
        quotient = tirx.floordiv(as_int64(x.numerator) + rounding_term, x.denominator)
        return Ratio(self._simplified(quotient), 1)

    def _truncated(self, a: Any, b: Any) -> Any:
        """a / b, rounded towards zero as ONNX divides integers; a floor where a is not negative."""
        self._check_positive(b)
        a, b = as_int64(a), as_int64(b)
        divide = tirx.floordiv if self._analyzer.can_prove(a >= 0) else tirx.truncdiv
        return self._simplified(divide(a, b))

    def _check_positive(self, divisor: Any) -> None:
        """Refuse a divisor that may be negative or is zero.

        A dimension that a model divides by is taken to be positive: the model itself could not run
        with zero.
        """
        number = static(divisor)
        if number is not None and number <= 0:
            raise NotKnownError
        if number is None and not self._analyzer.can_prove(divisor >= 0):
            raise NotKnownError

    def _compared(self, op_type: str, a: Any, b: Any) -> bool:
        """A comparison of integers, where it has the same result for all dimensions."""
        a, b = as_int64(a), as_int64(b)
        condition = COMPARISONS[op_type](a, b)
        if op_type == "Equal":  # an operand's own == asks whether two objects are the same
            condition = tirx.EQ(a, b)
        if self._analyzer.can_prove(condition):
            return True
        if self._analyzer.can_prove(tirx.Not(condition)):
            return False
        raise NotKnownError

    def _absolute(self, x: Any) -> Any:
        if not is_symbolic(x):
            return abs(x)
        # Denominators are positive, so the numerator has the sign.
        if self._compared("GreaterOrEqual", as_ratio(x).numerator, 0):
            return x
        return self.unary("Neg", x)

    def _simplified(self, expression: Any) -> Any:
        """An integer expression simplified; an int if no dimension is left in it."""
        simplified = self._analyzer.simplify(as_int64(expression))
        number = static(simplified)
        return simplified if number is None else number


def symbols(expressions: Iterable[Any]) -> list[Any]:
    """The variables in some expressions, each once."""
    symbolic = [expression for expression in expressions if isinstance(expression, tvm.ir.Expr)]
    return list(dict.fromkeys(nodes_in(symbolic, tvm.ir.Var)))


def _zero_like(x: Any) -> Any:
    return Ratio(0, 1) if isinstance(x, Ratio) else 0


def _float(x: Any, dtype: np.dtype) -> Any:
    return x if isinstance(x, Ratio) else dtype.type(x)


def _quotient(a: int, b: int) -> int:
    """a / b, rounded towards zero."""
    if b == 0:
        raise NotKnownError
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int:
    """a modulo b, with the sign of b: ONNX's Mod without fmod, and Python's."""
    if b == 0:
        raise NotKnownError
    return a % b
