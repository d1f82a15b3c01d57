"""Gradient rules: their kinds, how they are registered and found, and what a sample is.

A rule states only the mathematics of one op. Broadcast reduction, dtypes, zero and absent
cotangents, and inputs that need no gradient are the engine's (`graphgrad.autodiff.reverse`). The
kind says which form the mathematics has:

============== ============================================== ==================================
kind           the function                                   meaning
============== ============================================== ==================================
elementwise    ``f(*inputs, output) -> partial derivatives``  y_i depends on the i-th elements
linear         ``f(*inputs, ct) -> cotangents``               reads only the types of the inputs
bilinear       ``f(a, b, ct) -> (ā, b̄)``                      linear in each of two inputs
composite      ``f(*inputs) -> outputs``                      the op itself, in other ops
general        ``f(inputs, outputs, cotangents, attrs)``      anything else
============== ============================================== ==================================

A function with a parameter named ``attrs`` is given the op's attributes. ``None`` in place of a
cotangent says *not differentiable in this input*.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tvm

from ..errors import RuleError
from .sample import Sample

Kind = Literal["elementwise", "linear", "bilinear", "composite", "general", "nondifferentiable"]
Origin = Literal["hand", "user", "derived"]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Rule:
    """How one op is differentiated.

    Attributes
    ----------
    op : str
        Full op name, such as ``relax.nn.conv2d``.
    kind : Kind
    function : callable or None
        The mathematics, in the form that the kind says; None for ``nondifferentiable``.
    samples : tuple of Sample
        Calls of the op, on which the rule is checked.
    origin : "hand", "user" or "derived"
    singular : bool
        The partial derivatives can be infinite or NaN: where the cotangent is zero, their product
        is zero. So a mask that excludes a point also excludes its derivative.
    """

    op: str
    kind: Kind
    function: Function | None
    samples: tuple[Sample, ...] = ()
    origin: Origin = "hand"
    singular: bool = False
    takes_attributes: bool = False

    @property
    def formula(self) -> str:
        """The rule's mathematics: the first line of its docstring."""
        doc = inspect.getdoc(self.function) if self.function else None
        return doc.splitlines()[0] if doc else ""

    @property
    def location(self) -> str:
        """Where the rule is written, as ``file:line``."""
        if self.function is None:
            return "declared not differentiable"
        code = self.function.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def __str__(self) -> str:
        return self.op


_RULES: dict[str, dict[str, Rule]] = {"hand": {}, "user": {}}


def find(op: str, hand: bool = True) -> Rule | None:
    """Return the rule for an op; a user's rule goes before one of graphgrad's.

    Without `hand`, graphgrad's own only say which ops are not differentiable.
    """
    rule = _RULES["user"].get(op) or _RULES["hand"].get(op)
    given = rule is None or hand or rule.origin == "user" or rule.kind == "nondifferentiable"
    return rule if given else None


def all_rules() -> Iterator[Rule]:
    """Yield every registered rule, graphgrad's first, in the order of registration."""
    for rules in _RULES.values():
        yield from rules.values()


def unregister(op: str) -> None:
    """Take back the user's rule for an op.

    Raises
    ------
    RuleError
        The user has registered none.
    """
    if op not in _RULES["user"]:
        raise RuleError(f"no rule of yours is registered for {op}")
    del _RULES["user"][op]


def _origin(module: str) -> Origin:
    return "hand" if module.startswith("graphgrad.registry.") else "user"


def _add(rule: Rule) -> None:
    if rule.op not in tvm.ir.Op.list_op_names():
        raise RuleError(
            f"{rule.location}: there is no Relax op named {rule.op!r}; give the full name, such "
            "as 'relax.nn.gelu'"
        )
    known = _RULES[rule.origin].get(rule.op)
    if known is not None and known.location != rule.location:
        raise RuleError(
            f"{rule.location}: {rule.op} has a rule already, at {known.location}; take it back "
            f"with graphgrad.registry.unregister({rule.op!r}) first"
        )
    _RULES[rule.origin][rule.op] = rule


def _decorator(
    op: str, kind: Kind, samples: Sequence[Sample], singular: bool = False
) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        takes_attributes = "attrs" in inspect.signature(function).parameters
        origin = _origin(function.__module__)
        _add(Rule(op, kind, function, tuple(samples), origin, singular, takes_attributes))
        return function

    return decorate


def register_gradient(op: str, *, samples: Sequence[Sample] = ()) -> Callable[[Function], Function]:
    """Register a gradient rule of the general form.

    Parameters
    ----------
    op : str
        Full op name, such as ``"relax.nn.gelu"``.
    samples : sequence of Sample
        Calls on which the rule is to be checked, see `graphgrad.registry.sample`.

    Returns
    -------
    decorator
        For ``def rule(inputs, outputs, cotangents, attrs)``. ``inputs`` has one entry per argument
        of the op: a `Tensor`, a list of them for a tuple, or the Relax value of a shape or number.
        ``outputs`` and ``cotangents`` have one `Tensor` per output; an output that nothing reads
        has a zero cotangent. The rule returns one cotangent per input (`Tensor` or Relax
        expression, in the input's shape or one broadcast from it); ``None`` means *not
        differentiable there*.

    Raises
    ------
    RuleError
        The op does not exist, or has a rule of the same origin already.

    Examples
    --------
    >>> @gg.register_gradient("relax.nn.gelu")
    ... def gelu(inputs, outputs, cotangents, attrs):
    ...     '''x̄ = ȳ · (Φ(x) + x φ(x))'''
    ...     (x,), (ct,) = inputs, cotangents
    ...     ...
    """
    return _decorator(op, "general", samples)


def elementwise(
    op: str, *, samples: Sequence[Sample], singular: bool = False
) -> Callable[[Function], Function]:
    """Register ``f(*inputs, output)``, which returns dy/dx for each input (a number will do)."""
    return _decorator(op, "elementwise", samples, singular)


def linear(op: str, *, samples: Sequence[Sample]) -> Callable[[Function], Function]:
    """Register ``f(*inputs, ct)`` of a linear op, which reads only the types of the inputs."""
    return _decorator(op, "linear", samples)


def bilinear(op: str, *, samples: Sequence[Sample]) -> Callable[[Function], Function]:
    """Register ``f(a, b, ct)`` of an op that is linear in each of its two inputs."""
    return _decorator(op, "bilinear", samples)


def composite(op: str, *, samples: Sequence[Sample]) -> Callable[[Function], Function]:
    """Register ``f(*inputs)``, which states the op in terms of ops that have rules.

    Where a gradient flows through the op, the statement takes the op's place in the primal program.
    """
    return _decorator(op, "composite", samples)


def nondifferentiable(*ops: str) -> None:
    """Declare that the derivative of ops is zero or undefined on an open set: no cotangent.

    Raises
    ------
    RuleError
        An op does not exist, or has a rule already.
    """
    caller = inspect.currentframe().f_back.f_globals["__name__"]  # type: ignore[union-attr]
    for op in ops:
        _add(Rule(op, "nondifferentiable", None, origin=_origin(caller)))
