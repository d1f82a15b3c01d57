"""Cases of operators that work element by element, and of casts."""

from __future__ import annotations

import numpy as np

from .draw import FLOATS, INTEGERS, Draw, Drawn, drawer, element_type

_REAL_ATTRIBUTES = ("alpha", "beta", "gamma", "lambd", "bias", "threshold")

_NOT_FINITE = 0.15
"""How often values that are not finite, or extremes, are among the inputs."""


@drawer(
    *[
        "Abs",
        "Acos",
        "Acosh",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "BitwiseNot",
        "Ceil",
        "Celu",
        "Cos",
        "Cosh",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
    ],
    *[
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "IsInf",
        "IsNaN",
        "LeakyRelu",
        "Log",
        "Mish",
        "Neg",
        "Not",
    ],
    *[
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Shrink",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
        "Sqrt",
    ],
    *["Swish", "Tan", "Tanh", "ThresholdedRelu"],
)
def unary(draw: Draw) -> Drawn:
    constraint = draw.schema.inputs[0].type_str
    dtype = draw.dtype(constraint)
    scale = draw.choice([1.0, 3.0, 12.0])
    low = -scale if dtype in FLOATS or dtype.startswith("int") else 0
    x = draw.values(draw.shape(), dtype, low, scale, _NOT_FINITE)
    real = {name: draw.real() for name in _REAL_ATTRIBUTES}
    if draw.operator == "Celu":
        real["alpha"] = draw.real(0.2, 2)
    flags = {f"detect_{sign}": draw.integer(0, 1) for sign in ("negative", "positive")}
    attributes = draw.some(**real, **flags, approximate=draw.choice(["none", "tanh"]))
    return Drawn([draw.fixed(x, 0.05)], attributes)


@drawer(
    *[
        "Add",
        "And",
        "BitShift",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
    ],
    *["Less", "LessOrEqual", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Xor"],
)
def binary(draw: Draw) -> Drawn:
    constraints = [formal.type_str for formal in draw.schema.inputs]
    dtype = draw.dtype(constraints[0])
    other = dtype if constraints[0] == constraints[1] else draw.dtype(constraints[1])
    attributes = draw.always(direction=draw.choice(["LEFT", "RIGHT"]))
    is_integer = dtype in INTEGERS
    if draw.operator == "Mod":
        attributes = draw.always(fmod=int(not is_integer or draw.chance()))
    shape = draw.shape()
    a, b = shape, draw.broadcast(shape, draw.operator == "PRelu")
    if draw.chance() and draw.operator != "PRelu":
        a, b = b, a
    low, high = (0, 7) if draw.operator == "BitShift" else (-4, 9)
    special = 0.0 if draw.operator in ("BitShift", "Pow") else _NOT_FINITE
    x, y = draw.values(a, dtype, low, high, special), draw.values(b, other, low, high, special)
    if draw.operator in ("Div", "Mod") and is_integer:
        y = np.where(y == 0, np.array(3, other), y)
        if (y < 0).any():  # the smallest by −1 overflows
            x = np.where(x == np.iinfo(dtype).min, np.array(5, dtype), x)
    if draw.operator == "Pow":
        x = np.abs(x) if other in FLOATS else x
        y = np.abs(y) if is_integer and other.startswith("int") else y
    probability = 0.5 if draw.chance(0.3) else 0.0
    return Drawn([draw.fixed(x, probability), draw.fixed(y, probability)], attributes)


@drawer("Max", "Min", "Mean", "Sum")
def variadic(draw: Draw) -> Drawn:
    dtype, shape = draw.dtype(), draw.shape()
    shapes = [shape, *(draw.broadcast(shape) for _ in range(draw.integer(0, 2)))]
    return Drawn([draw.values(s, dtype, special=_NOT_FINITE) for s in shapes])


@drawer("Where")
def where(draw: Draw) -> Drawn:
    dtype, shape = draw.dtype(), draw.shape()
    condition = draw.values(draw.broadcast(shape), "bool")
    sides = [draw.values(s, dtype, special=_NOT_FINITE) for s in (shape, draw.broadcast(shape))]
    return Drawn([draw.fixed(condition, 0.2), *sides])


@drawer("Clip")
def clip(draw: Draw) -> Drawn:
    dtype = draw.dtype()
    x = draw.values(draw.shape(), dtype, special=_NOT_FINITE)
    if draw.has("min"):
        return Drawn([x], draw.some(min=draw.real(-2, 0.5), max=draw.real(0, 2)))
    limits = [np.array(draw.integer(low, low + 2)).astype(x.dtype) for low in (-2, 0)]
    if dtype.startswith("u"):
        limits = [np.array(value, x.dtype) for value in (1, 2)]
    return Drawn([x, *(draw.fixed(v, 0.6) if draw.chance(0.8) else None for v in limits)])


@drawer("Cast", "CastLike")
def cast(draw: Draw) -> Drawn:
    dtype, to = draw.dtype("T1"), draw.choice(draw.dtypes("T2"))
    low = 0 if to.startswith("u") and to != "bool" else -90
    special = _NOT_FINITE if {dtype, to} <= set(FLOATS) or to == "bool" else 0.0
    x = draw.fixed(draw.values(draw.shape(), dtype, low, 90, special), 0.1)
    if draw.operator == "CastLike":
        return Drawn([x, draw.values([2], to)], draw.some(saturate=draw.integer(0, 1)))
    return Drawn([x], {"to": element_type(to), **draw.some(saturate=draw.integer(0, 1))})


@drawer("Dropout")
def dropout(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(), draw.dtype(), special=_NOT_FINITE)
    inputs = [x]
    if not draw.has("ratio") and draw.chance():
        inputs += [draw.ints(draw.real(0, 0.9), "float32")]
        inputs += [draw.ints(False, "bool")] * draw.chance()
    outputs = draw.integer(1, 2) if draw.opset >= 10 else 1
    return Drawn(inputs, draw.some(ratio=draw.real(0, 0.9), seed=3), outputs)


@drawer("Softmax", "LogSoftmax", "Hardmax")
def softmax(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1), draw.dtype(), -8, 8)
    return Drawn([x], draw.some(axis=draw.axis(x.ndim)))


@drawer("CumSum", "CumProd")
def cumulative(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1), draw.dtype())
    axis = draw.ints(draw.axis(x.ndim), draw.choice(["int32", "int64"]), 0.9)
    flags = draw.some(exclusive=draw.integer(0, 1), reverse=draw.integer(0, 1))
    return Drawn([x, axis], flags)


@drawer("DequantizeLinear")
def dequantize(draw: Draw) -> Drawn:
    constraint = draw.schema.inputs[0].type_str
    allowed = [t for t in draw.dtypes(constraint) if t in ("int8", "uint8", "int32", "int16")]
    dtype = draw.choice(allowed)
    x = draw.values(draw.shape(1), dtype, -90, 90)
    scale, attributes = _scale(draw, x)
    zero = draw.values(np.shape(scale), dtype, -9, 9) if dtype != "int32" else None
    return Drawn([x, scale, zero if draw.chance() else None], attributes)


@drawer("QuantizeLinear")
def quantize(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1), "float32", -9, 9)
    scale, attributes = _scale(draw, x)
    zero = draw.values(np.shape(scale), draw.choice(["int8", "uint8"]), -9, 9)
    return Drawn([x, scale, zero if draw.chance(0.7) else None], attributes)


def _scale(draw: Draw, x: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
    """A scale for all, for each element of an axis, or for each block along it."""
    axis = draw.axis(x.ndim)
    kind = draw.choice(["one", "axis", "block"])
    if kind == "one" or not draw.has("axis"):
        return draw.values([], "float32", 0.1, 0.5), {}
    if kind == "block" and draw.has("block_size") and x.size:
        size = draw.integer(1, 3)
        shape = list(x.shape)
        shape[axis] = -(-shape[axis] // size)
        return draw.values(shape, "float32", 0.1, 0.5), {"axis": axis, "block_size": size}
    return draw.values([x.shape[axis]], "float32", 0.1, 0.5), {"axis": axis}


@drawer("DynamicQuantizeLinear")
def dynamic_quantize(draw: Draw) -> Drawn:
    low = draw.choice([-3, 0.5, -9])
    return Drawn([draw.values(draw.shape(1, empty=0), "float32", low, low + 6)], outputs=3)


@drawer("EyeLike")
def eye(draw: Draw) -> Drawn:
    x = draw.values(draw.integers(2, 1, 5), draw.dtype("T1"))
    dtype = element_type(draw.choice(draw.dtypes("T2")))
    return Drawn([x], draw.some(k=draw.integer(-3, 3), dtype=dtype))


@drawer("Trilu")
def trilu(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(2), draw.dtype(), special=_NOT_FINITE)
    k = draw.ints(draw.integer(-4, 4)) if draw.chance(0.7) else None
    return Drawn([x, k], draw.some(upper=draw.integer(0, 1)))


@drawer("BiasGelu", "FastGelu", "Gelu", domain="com.microsoft")
def contributed_gelu(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1, empty=0), "float32", -6, 6)
    bias = draw.values([x.shape[-1]])
    needs = draw.operator == "BiasGelu" or (draw.operator == "FastGelu" and draw.chance())
    return Drawn([x, bias] if needs else [x])
