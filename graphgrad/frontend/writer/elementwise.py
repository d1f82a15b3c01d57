"""Maps: one node each, or a few."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ir.tensor import same_shape
from .graph import GraphWriter, Site, UnwritableError, elem_type, writes

_SAME = {
    "relax.abs": "Abs",
    "relax.acos": "Acos",
    "relax.acosh": "Acosh",
    "relax.add": "Add",
    "relax.asin": "Asin",
    "relax.asinh": "Asinh",
    "relax.atan": "Atan",
    "relax.atanh": "Atanh",
    "relax.ceil": "Ceil",
    "relax.cos": "Cos",
    "relax.cosh": "Cosh",
    "relax.divide": "Div",
    "relax.equal": "Equal",
    "relax.erf": "Erf",
    "relax.exp": "Exp",
    "relax.floor": "Floor",
    "relax.greater": "Greater",
    "relax.greater_equal": "GreaterOrEqual",
    "relax.isnan": "IsNaN",
    "relax.less": "Less",
    "relax.less_equal": "LessOrEqual",
    "relax.log": "Log",
    "relax.logical_and": "And",
    "relax.logical_not": "Not",
    "relax.logical_or": "Or",
    "relax.logical_xor": "Xor",
    "relax.maximum": "Max",
    "relax.minimum": "Min",
    "relax.multiply": "Mul",
    "relax.negative": "Neg",
    "relax.power": "Pow",
    "relax.round": "Round",
    "relax.sigmoid": "Sigmoid",
    "relax.sign": "Sign",
    "relax.sin": "Sin",
    "relax.sinh": "Sinh",
    "relax.sqrt": "Sqrt",
    "relax.subtract": "Sub",
    "relax.tan": "Tan",
    "relax.tanh": "Tanh",
    "relax.nn.relu": "Relu",
    "graphgrad.copy": "Identity",
    "relax.grad.no_grad": "Identity",
    "relax.grad.start_checkpoint": "Identity",
    "relax.grad.end_checkpoint": "Identity",
}


def _same(site: Site) -> str:
    operator = _SAME[site.call.op.name]
    return str(site.graph.node(operator, *site.names))


writes(*_SAME)(_same)


@writes("relax.where")
def _where(site: Site) -> Any:
    """A Where, or an If where all elements are of one of the two.

    What an If chooses stays as it is bit for bit; onnxruntime's Where makes 0 of −0.
    """
    graph, (condition, x, y) = site.graph, site.names
    same = (same_shape(site.shape_of(number), site.shape) for number in (1, 2))
    if not site.shape_of(0) and all(same):
        return graph.choice(condition, x, y, site.ty)
    return graph.node("Where", condition, x, y)


@writes("relax.astype")
def _cast(site: Site) -> Any:
    return site.graph.node("Cast", site.names[0], to=elem_type(site.dtype))


@writes("relax.rsqrt")
def _rsqrt(site: Site) -> Any:
    return site.graph.node("Reciprocal", site.graph.node("Sqrt", site.names[0]))


@writes("relax.square")
def _square(site: Site) -> Any:
    return site.graph.node("Mul", site.names[0], site.names[0])


@writes("relax.not_equal")
def _not_equal(site: Site) -> Any:
    return site.graph.node("Not", site.graph.node("Equal", *site.names))


@writes("relax.isinf")
def _is_infinite(site: Site) -> Any:
    return site.graph.is_infinite(site.names[0], str(site.call.args[0].ty.dtype))


@writes("relax.isfinite")
def _is_finite(site: Site) -> Any:
    dtype = str(site.call.args[0].ty.dtype)
    return site.graph.node("Not", is_excluded(site.graph, site.names[0], dtype))


def is_excluded(graph: GraphWriter, x: str, dtype: str) -> str:
    """Whether the elements are infinite or NaN."""
    return str(graph.node("Or", graph.is_infinite(x, dtype), graph.node("IsNaN", x)))


@writes("graphgrad.masked_product")
def _masked_product(site: Site) -> Any:
    ct, factor = site.names
    zero = site.graph.constant(0.0, site.dtype)
    is_zero = site.graph.node("Equal", ct, zero)
    excluded = site.graph.node("And", is_zero, is_excluded(site.graph, factor, site.dtype))
    return site.graph.node("Where", excluded, zero, site.graph.node("Mul", ct, factor))


@writes("relax.clip")
def _clip(site: Site) -> Any:
    x, *bounds = site.names
    low, high = (site.graph.constant(float(bound.value), site.dtype) for bound in bounds)
    return site.graph.node("Clip", x, low, high)


@writes("relax.nn.leakyrelu")
def _leaky_relu(site: Site) -> Any:
    return site.graph.node("LeakyRelu", site.names[0], alpha=float(site.attributes.alpha))


@writes("relax.nn.softplus")
def _softplus(site: Site) -> Any:
    """log(1 + exp βx) / β, and x itself where βx is above the threshold."""
    (x,), graph = site.names, site.graph
    beta, threshold = float(site.attributes.beta), float(site.attributes.threshold)
    scaled = graph.node("Mul", x, graph.constant(beta, site.dtype))
    soft = graph.node("Div", graph.node("Softplus", scaled), graph.constant(beta, site.dtype))
    is_far = graph.node("Greater", scaled, graph.constant(threshold, site.dtype))
    return graph.node("Where", is_far, x, soft)


@writes("relax.nn.silu")
def _silu(site: Site) -> Any:
    (x,) = site.names
    return site.graph.node("Mul", x, site.graph.node("Sigmoid", x))


@writes("relax.nn.gelu")
def _gelu(site: Site) -> Any:
    (x,) = site.names

    def constant(value: float) -> str:
        return site.graph.constant(value, site.dtype)

    erf = site.graph.node("Erf", site.graph.node("Mul", x, constant(0.5**0.5)))
    half = site.graph.node("Mul", x, constant(0.5))
    return site.graph.node("Mul", half, site.graph.node("Add", erf, constant(1.0)))


@writes("relax.nn.gelu_tanh")
def _gelu_tanh(site: Site) -> Any:
    """x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2"""
    graph, (x,) = site.graph, site.names

    def scaled(value: str, factor: float) -> str:
        return str(graph.node("Mul", value, graph.constant(factor, site.dtype)))

    cube = graph.node("Mul", graph.node("Mul", x, x), x)
    inner = graph.node("Add", x, scaled(cube, 0.044715))
    tanh = graph.node("Tanh", scaled(inner, math.sqrt(2 / math.pi)))
    return graph.node("Mul", scaled(x, 0.5), graph.node("Add", tanh, graph.constant(1, site.dtype)))


@writes("relax.mod")
def _mod(site: Site) -> Any:
    return site.graph.node("Mod", *site.names, fmod=1)


@writes("relax.floor_mod")
def _floor_mod(site: Site) -> Any:
    """The remainder with the sign of the divisor, which ONNX has of integers alone."""
    graph, (x, y) = site.graph, site.names
    if "int" in site.dtype:
        return graph.node("Mod", x, y)
    zero = graph.constant(0, site.dtype)
    remainder = graph.node("Mod", x, y, fmod=1)
    signs = (graph.node("Less", value, zero) for value in (remainder, y))
    is_any = graph.node("Not", graph.node("Equal", remainder, zero))
    is_other = graph.node("And", is_any, graph.node("Xor", *signs))
    return graph.node("Where", is_other, graph.node("Add", remainder, y), remainder)


@writes("relax.bitwise_and", "relax.bitwise_or", "relax.bitwise_xor", "relax.bitwise_not")
def _bitwise(site: Site) -> Any:
    operator = site.call.op.name.removeprefix("relax.bitwise_").capitalize()
    if site.dtype == "bool":
        return site.graph.node(operator, *site.names)
    site.graph.require(18, site.call.op.name)
    return site.graph.node(f"Bitwise{operator}", *site.names)


@writes("relax.nn.softmax", "relax.nn.log_softmax")
def _softmax(site: Site) -> Any:
    operator = "Softmax" if site.call.op.name == "relax.nn.softmax" else "LogSoftmax"
    return site.graph.node(operator, site.names[0], axis=int(site.attributes.axis))


@writes("relax.zeros", "relax.ones", "relax.zeros_like", "relax.ones_like")
def _filled(site: Site) -> Any:
    value = 1.0 if "ones" in site.call.op.name else 0.0
    fill = site.graph.constant(np.array(value, site.dtype))
    return site.graph.node("Expand", fill, site.graph.shape(site.shape))


@writes("relax.arange")
def _arange(site: Site) -> Any:
    """Integers between bounds that may be symbolic extents."""
    graph = site.graph
    if "int" not in site.dtype:
        raise UnwritableError(f"a range of {site.dtype}")
    bounds = (graph.scalar(getattr(value, "value", value)) for value in site.names)
    numbers = graph.node("Range", *bounds)
    return graph.node("Cast", numbers, to=elem_type(site.dtype))


@writes("relax.full", "relax.full_like")
def _full(site: Site) -> Any:
    fill = site.graph.node("Cast", site.names[1], to=elem_type(site.dtype))
    return site.graph.node("Expand", fill, site.graph.shape(site.shape))
