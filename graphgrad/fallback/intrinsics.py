"""Derivatives of scalar functions, as tensor expressions call them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ..errors import RuleError
from ..plugins import PLUGINS, is_loading
from .memo import DERIVED
from .walk import Expr

Partials = Callable[..., Any]
"""Of the arguments and the value: dy/dx, or one for each argument (None: no dependence)."""


@dataclass(frozen=True)
class Intrinsic:
    """What is known of a scalar function.

    Attributes
    ----------
    partials : callable or None
        None if the derivative is zero wherever it exists.
    singular : bool
        A partial derivative may be infinite: its product with a zero cotangent is zero.
    """

    partials: Partials | None
    singular: bool = False


_TABLE: dict[str, Intrinsic] = {}
_OF_PLUGINS: dict[str, Intrinsic] = {}
_OF_USERS: dict[str, Intrinsic] = {}


def register_intrinsic_gradient(
    name: str, partials: Partials, *, singular: bool = False
) -> Partials:
    """Say what the derivative of a scalar function is, wherever a tensor expression calls it.

    Parameters
    ----------
    name : str
        Of the operator, such as ``"tirx.erf"``; or of the function that ``tirx.call_pure_extern``
        or ``tirx.call_extern`` calls.
    partials : callable
        Given the arguments and the value as expressions, returns dy/dx; for several arguments a
        tuple with one for each, None for an argument that has no derivative. It may compare and
        select, and use every function of ``tvm.tirx``. Narrow floats reach it as float32.
    singular : bool
        A derivative may be infinite, as that of sqrt at 0: its product with a zero cotangent is 0,
        not NaN.

    Returns
    -------
    callable
        `partials`.

    Raises
    ------
    RuleError
        The arguments are not a name and a function. When a gradient is derived: the function does
        not give one derivative for each argument.

    Examples
    --------
    >>> gg.register_intrinsic_gradient("tirx.erf", lambda x, y: 1.128379167 * tirx.exp(-x * x))
    >>> gg.register_intrinsic_gradient("hypotf", lambda a, b, y: (a / y, b / y), singular=True)
    """
    if not isinstance(name, str) or not name or not callable(partials):
        raise RuleError(
            f"register_intrinsic_gradient takes a name and a function, got {name!r}, {partials!r}"
        )
    table = _OF_PLUGINS if is_loading() else _OF_USERS
    table[name] = Intrinsic(partials, singular)
    DERIVED.clear()
    return partials


def find(name: str) -> Intrinsic | None:
    """The record of an intrinsic by its name, None if there is none.

    What users say goes before what plug-ins say, and this before what graphgrad knows.

    Raises
    ------
    RuleError
        A plug-in cannot be loaded.
    """
    PLUGINS.load()
    return _OF_USERS.get(name) or _OF_PLUGINS.get(name) or _TABLE.get(name)


def refusal(name: str) -> str | None:
    """The reason why an operator of TVM has no derivative here, None if nothing is known of it."""
    if name.count(".") > 1:
        return "belongs to one kind of device"
    return _REFUSED.get(name)


def _define(singular: bool = False, **functions: Partials) -> None:
    for name, partials in functions.items():
        _TABLE[f"tirx.{name}"] = Intrinsic(partials, singular)


def _pow(a: Expr, b: Expr, y: Expr) -> tuple[Expr, Expr | None]:
    """The conventions of `relax.power`: 0 for the exponent where a = 0 ≤ b, and for a at 0⁰."""
    if isinstance(b, tirx.FloatImm):
        # Of a⁰, 0 · 0⁻¹ would be NaN; of a², a¹ is a itself.
        lower = {0.0: _like(a, 0.0), 2.0: a}.get(float(b.value))
        return b * (tirx.pow(a, b - 1.0) if lower is None else lower), None
    # Operands are replaced, not results: 0 · 0⁻¹ and 0 · log(0) are NaN.
    at_zero = tirx.EQ(a, _like(a, 0.0))
    exponent = tirx.Select(tirx.all(at_zero, tirx.EQ(b, _like(b, 0.0))), _like(b, 1.0), b)
    base = tirx.Select(tirx.all(at_zero, b >= _like(b, 0.0)), _like(a, 1.0), a)
    return b * tirx.pow(a, exponent - 1.0), y * tirx.log(base)


def _atan2(a: Expr, b: Expr, _: Expr) -> tuple[Expr, Expr]:
    largest = tirx.Select(tirx.abs(a) > tirx.abs(b), tirx.abs(a), tirx.abs(b))
    # Squares of the larger number itself might be 0 or infinite. Both derivatives are 0 at the
    # origin, rather than NaN.
    is_origin = tirx.EQ(largest, _like(a, 0.0))
    unusable = tirx.any(is_origin, tirx.EQ(largest, _like(a, math.inf)))
    scale = tirx.Select(unusable, _like(a, 1.0), largest)
    a, b = a / scale, b / scale
    square = tirx.Select(is_origin, _like(a, 1.0), a * a + b * b)
    return b / square / scale, -a / square / scale


def _asinh(x: Expr, _: Expr) -> Expr:
    # x² might be infinite: beyond 1 it is divided by, and so is the 1.
    one = _like(x, 1.0)
    scale = tirx.Select(tirx.abs(x) > one, one / tirx.abs(x), one)
    return scale * tirx.rsqrt(scale * scale + (scale * x) * (scale * x))


def _hypot(a: Expr, b: Expr, y: Expr) -> tuple[Expr, Expr]:
    length = tirx.Select(tirx.EQ(y, _like(y, 0.0)), _like(y, 1.0), y)
    return a / length, b / length


def _sign(x: Expr) -> Expr:
    """1, -1, 0 at 0, NaN at NaN."""
    zero, one = _like(x, 0.0), _like(x, 1.0)
    return tirx.Select(x > zero, one, tirx.Select(x < zero, -one, x))


def _copysign(a: Expr, _: Expr, y: Expr) -> tuple[Expr, None]:
    return _sign(a) * _sign(y), None


def _like(x: Expr, value: float) -> Expr:
    return tirx.const(value, str(x.ty))


_define(
    atan=lambda x, y: 1.0 / (1.0 + x * x),
    asinh=_asinh,
    cos=lambda x, y: -tirx.sin(x),
    cosh=lambda x, y: tirx.sinh(x),
    erf=lambda x, y: (2.0 / math.sqrt(math.pi)) * tirx.exp(-(x * x)),
    exp2=lambda x, y: math.log(2.0) * y,
    exp10=lambda x, y: math.log(10.0) * y,
    fabs=lambda x, y: _sign(x),
    fma=lambda a, b, c, y: (b, a, 1.0),
    sigmoid=lambda x, y: y * (1.0 - y),
    sin=lambda x, y: tirx.cos(x),
    sinh=lambda x, y: tirx.cosh(x),
    tan=lambda x, y: 1.0 + y * y,
    tanh=lambda x, y: 1.0 - y * y,
    atan2=_atan2,
    copysign=_copysign,
    hypot=_hypot,
    ldexp=lambda x, exponent, y: (tirx.ldexp(_like(x, 1.0), exponent), None),
    nextafter=lambda x, towards, y: (1.0, None),
)
_define(
    singular=True,
    # Not 1 - x²: near ±1 it would be mostly the rounding error of x².
    acos=lambda x, y: -tirx.rsqrt((1.0 - x) * (1.0 + x)),
    acosh=lambda x, y: tirx.rsqrt(x - 1.0) * tirx.rsqrt(x + 1.0),  # x² would overflow first
    asin=lambda x, y: tirx.rsqrt((1.0 - x) * (1.0 + x)),
    atanh=lambda x, y: 1.0 / ((1.0 - x) * (1.0 + x)),
    exp=lambda x, y: y,
    fmod=lambda a, b, y: (1.0, -tirx.trunc(a / b)),
    log=lambda x, y: 1.0 / x,
    log10=lambda x, y: (1.0 / math.log(10.0)) / x,
    log1p=lambda x, y: 1.0 / (1.0 + x),
    log2=lambda x, y: (1.0 / math.log(2.0)) / x,
    pow=_pow,
    rsqrt=lambda x, y: -0.5 * y / x,
    sqrt=lambda x, y: 0.5 / y,
)
for _name in ("prim.ceil", *(f"tirx.{n}" for n in ("floor", "nearbyint", "round", "trunc"))):
    _TABLE[_name] = Intrinsic(None)
# Some are operators of primitive expressions.
_TABLE["prim.log2"] = _TABLE["tirx.log2"]
_TABLE["prim.likely"] = Intrinsic(lambda x, y: 1.0)

_REFUSED = {
    "tirx.call_llvm_pure_intrin": "is that of an instruction of LLVM, called by its number",
    "tirx.call_spirv_pure_glsl450": "is that of an instruction of SPIR-V, called by its number",
    "tirx.reinterpret": "does not exist: the bits of a number are read as another's",
    **dict.fromkeys(
        ("tirx.vectorcombine", "tirx.vectorhigh", "tirx.vectorlow"), "is that of a vector's parts"
    ),
}
"""Why operators that give floats have no derivative; those that give no floats need none."""
