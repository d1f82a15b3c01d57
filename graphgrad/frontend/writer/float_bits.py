"""The bits of float32 as int32, which ONNX has no operator for: computed in float64, exactly."""

from __future__ import annotations

from .graph import GraphWriter, elem_type

_WIDE = "float64"
_LEAST_EXPONENT = -126
"""Below its power of two, numbers are multiples of one number."""

_FRACTIONS = 2.0**23
"""How many numbers there are from a power of two to the next."""

_INFINITY = 0x7F800000
_NAN = 0x7FC00000


def float_bits(graph: GraphWriter, x: str) -> str:
    """The bits of the elements; of every NaN those of one, and of −0 those of 0."""

    def node(operator: str, *inputs: str | float) -> str:
        names = (i if isinstance(i, str) else graph.constant(float(i), _WIDE) for i in inputs)
        return str(graph.node(operator, *names))

    def wide(name: str) -> str:
        return str(graph.node("Cast", name, to=elem_type(_WIDE)))

    magnitude = node("Abs", wide(x))
    is_nan, is_infinite = node("IsNaN", magnitude), node("IsInf", magnitude)
    finite = node("Where", node("Or", is_nan, is_infinite), 1, magnitude)
    # The logarithm of zero, and what its rounding does near powers of two, is corrected.
    guess = node("Floor", node("Div", node("Log", finite), node("Log", 2)))
    guess = node("Max", guess, _LEAST_EXPONENT)
    too_low = wide(node("GreaterOrEqual", finite, node("Pow", 2, node("Add", guess, 1))))
    too_high = wide(node("Less", finite, node("Pow", 2, guess)))
    exponent = node("Max", node("Sub", node("Add", guess, too_low), too_high), _LEAST_EXPONENT)
    fraction = node("Div", finite, node("Pow", 2, exponent))  # from 1 up to 2, or below it at 0
    # The bit in front of the fraction, which is not written, is that of the exponent before.
    steps = node("Add", node("Sub", exponent, _LEAST_EXPONENT), fraction)
    bits = node("Mul", steps, _FRACTIONS)
    bits = node("Where", is_infinite, _INFINITY, node("Where", is_nan, _NAN, bits))
    is_negative = wide(graph.node("Less", x, graph.constant(0, "float32")))
    signed = node("Sub", bits, node("Mul", is_negative, 2.0**31))
    return str(graph.node("Cast", signed, to=elem_type("int32")))
