"""Gradient rules: their kinds, how they are registered and found.

A rule states only the mathematics of one op. Broadcast reduction, dtypes, zero and absent
cotangents, and inputs that need no gradient are the engine's (`graphgrad.autodiff.apply`). The
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

The sixth kind has no function: `nondifferentiable` names ops that have no gradient anywhere.

A function with a parameter named ``attrs`` is given the op's attributes. ``None`` in place of a
cotangent says *not differentiable in this input*.

A rule is for a Relax op, or for a packed function or a PrimFunc by its name. Rules of users go
before those of plug-ins (`graphgrad.plugins`), and these before graphgrad's own.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tvm

from ..errors import GraphGradError, RuleError
from ..ir.callables import failing_line, location_of
from ..plugins import PLUGINS, is_loading
from .sample import Sample

Kind = Literal["elementwise", "linear", "bilinear", "composite", "general", "nondifferentiable"]
Origin = Literal["hand", "user", "derived"]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Rule:
    """The gradient rule of one op.

    Attributes
    ----------
    op : str
        Full op name, such as ``relax.nn.conv2d``, or the name of a packed function or PrimFunc.
    kind : Kind
    function : callable or None
        The mathematics, in the form that the kind says; None for ``nondifferentiable``.
    samples : tuple of Sample
        Calls of the op, on which the rule is checked.
    origin : "hand", "user" or "derived"
    singular : bool
        The partial derivatives can be infinite or NaN: where the cotangent is zero, their product
        is zero. So a mask that excludes a point also excludes its derivative.
    affine : bool
        A linear rule is that of an op which adds a constant: applied to a tangent, it would add
        that, too.
    takes_attributes : bool
        The function has a parameter ``attrs``.
    written : str
        Where the rule is written, if that is not where `function` is.
    """

    op: str
    kind: Kind
    function: Function | None
    samples: tuple[Sample, ...] = ()
    origin: Origin = "hand"
    singular: bool = False
    affine: bool = False
    takes_attributes: bool = False
    written: str = ""

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
        return self.written or location_of(self.function)

    def serves(self, rules: str) -> bool:
        """Whether the rule is used where a program is differentiated by `rules`, see `Program`.

        What is declared not differentiable stays so.
        """
        users = rules == "derived" and self.origin == "user"
        return rules == "auto" or users or self.kind == "nondifferentiable"

    def call(self, *arguments: Any, **keywords: Any) -> Any:
        """The result of the rule's function; errors as of `named_errors`."""
        assert self.function is not None, "activity asks for no rule that is not differentiable"
        with self.named_errors():
            return self.function(*arguments, **keywords)

    @contextlib.contextmanager
    def named_errors(self) -> Iterator[None]:
        """A context of what a rule computes.

        Raises
        ------
        RuleError
            In the place of any error, if the rule is a user's: names the rule, and the line of its
            file that failed.
        """
        try:
            yield
        except Exception as error:
            if self.origin != "user":
                raise
            line = None
            if self.function is not None and not self.written:
                line = failing_line(self.function, error)
            at_line = "" if line is None else f" at line {line}"
            text = str(error).strip()
            if not isinstance(error, GraphGradError):
                # TVM's errors have their own traceback in front of what they say.
                text = text.splitlines()[-1] if text else ""
            raise RuleError(
                f"{self.location}: the rule for {self.op} failed{at_line}: "
                f"{type(error).__name__}: {text}"
            ) from error

    def __str__(self) -> str:
        return self.op


def user_rule(rule: Rule) -> str | None:
    """Where a user's rule is written; None of any other."""
    return rule.location if rule.origin == "user" else None


_RULES: dict[str, dict[str, Rule]] = {"hand": {}, "plug-in": {}, "user": {}}
"""Rules of Relax ops, by who brought them and by op."""

_FUNCTION_RULES: dict[str, dict[str, Rule]] = {"plug-in": {}, "user": {}}
"""Rules of packed functions and PrimFuncs, by who brought them and by name."""


_GENERAL = ("inputs", "outputs", "cotangents", "attrs")
"""What a rule of the general form is called with."""

_SCALAR = "tirx."
"""Prefix of the ops that are scalar functions, not Relax ops."""


def find(op: str) -> Rule | None:
    """The rule for a Relax op: the user's, else a plug-in's, else graphgrad's.

    Raises
    ------
    RuleError
        A plug-in cannot be loaded.
    """
    PLUGINS.load()
    return _first(_RULES, op)


def has_users_rule(op: str) -> bool:
    """Whether a user has given a rule for a Relax op."""
    rule = find(op)
    return rule is not None and rule.origin == "user"


def find_function(name: str) -> Rule | None:
    """The rule for a packed function or PrimFunc: the user's, else a plug-in's.

    Raises
    ------
    RuleError
        A plug-in cannot be loaded.
    """
    PLUGINS.load()
    return _first(_FUNCTION_RULES, name)


def _first(tables: dict[str, dict[str, Rule]], name: str) -> Rule | None:
    """The rule of a name in the last table that has one, as users' rules come last; or None."""
    return next((rules[name] for rules in reversed(tables.values()) if name in rules), None)


def all_rules() -> Iterator[Rule]:
    """Yield every registered rule of a Relax op, graphgrad's first, in order of registration."""
    for rules in _RULES.values():
        yield from rules.values()


def unregister(op: str) -> None:
    """Take back the user's rule for an op, a packed function or a PrimFunc.

    Raises
    ------
    RuleError
        The user has registered none.
    """
    for tables in (_RULES, _FUNCTION_RULES):
        if op in tables["user"]:
            del tables["user"][op]
            return
    raise RuleError(f"no rule of yours is registered for {op}")


def _origin(module: str) -> Origin:
    """The origin of a rule that is registered by a module of this name."""
    return "hand" if module.startswith("graphgrad.registry.") else "user"


def _add(rule: Rule) -> None:
    """Enter a rule into its table, unless another one of the same origin is there already."""
    if _is_op(rule.op):
        tables = _RULES
    else:
        _check_function(rule)
        tables = _FUNCTION_RULES
    if rule.kind == "general":
        _check_signature(rule)
    rules = tables["plug-in" if is_loading() else rule.origin]
    earlier = rules.get(rule.op)
    # The same rule again, as of a module that is reloaded, takes its own place.
    if earlier is not None and earlier.location != rule.location:
        raise RuleError(
            f"{rule.location}: {rule.op} has a rule already, at {earlier.location}; take it back "
            f"with graphgrad.registry.unregister({rule.op!r}) first"
        )
    rules[rule.op] = rule


def _check_function(rule: Rule) -> None:
    """Check that a name that is no op's may be that of a packed function or a PrimFunc.

    Raises
    ------
    RuleError
        It looks like a misspelled op, is that of a scalar intrinsic, or the rule has samples.
    """
    if rule.origin == "hand" or _is_meant_as_op(rule.op):
        names = [name for name in tvm.ir.Op.list_op_names() if not name.startswith(_SCALAR)]
        close = difflib.get_close_matches(rule.op, names, n=3) or ["relax.nn.gelu"]
        raise RuleError(
            f"{rule.location}: there is no Relax op named {rule.op!r}; give the full name, such "
            f"as {close}, or the name of a packed function or PrimFunc"
        )
    if rule.op.startswith(_SCALAR):
        raise RuleError(
            f"{rule.location}: {rule.op} is a scalar intrinsic; give its derivative by "
            "graphgrad.register_intrinsic_gradient"
        )
    if rule.samples:
        raise RuleError(
            f"{rule.location}: samples are calls of a Relax op, and {rule.op!r} is none; check the "
            "rule with graphgrad.check_grads(module), on a module that calls the function"
        )


def _is_op(name: str) -> bool:
    return not name.startswith(_SCALAR) and name in tvm.ir.Op.list_op_names()


def _is_meant_as_op(name: str) -> bool:
    """Whether a name that is no op's is probably one with a mistake in it."""
    if tvm.get_global_func(name, allow_missing=True) is not None:
        return False
    is_part = "." in name and _is_op(f"relax.{name}")
    return is_part or name.startswith(("relax.", "graphgrad."))


def _decorator(
    op: str, kind: Kind, samples: Sequence[Sample], *, singular: bool = False, affine: bool = False
) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        takes_attributes = "attrs" in _signature(op, function).parameters
        origin = _origin(function.__module__)
        _add(Rule(op, kind, function, tuple(samples), origin, singular, affine, takes_attributes))
        return function

    return decorate


def _signature(op: str, function: Function) -> inspect.Signature:
    """The signature of a rule's function.

    Raises
    ------
    RuleError
        It is no function, or one that does not say what it takes.
    """
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise RuleError(f"the rule for {op} is {function!r}, not a function of Python") from error


def _check_signature(rule: Rule) -> None:
    """Raise `RuleError` unless a function can be called as a rule of the general form is."""
    assert rule.function is not None
    signature = _signature(rule.op, rule.function)
    try:
        signature.bind(*_GENERAL)
    except TypeError as error:
        raise RuleError(
            f"{rule.location}: the rule for {rule.op} takes {signature}, and is called with "
            f"({', '.join(_GENERAL)})"
        ) from error


def register_gradient(op: str, *, samples: Sequence[Sample] = ()) -> Callable[[Function], Function]:
    """Register a gradient rule of the general form.

    Parameters
    ----------
    op : str
        Full op name, such as ``"relax.nn.gelu"``. Any other name is that of a packed function,
        called by ``call_dps_packed``, ``call_pure_packed`` or directly, or of a PrimFunc of the
        module, called by ``call_tir``.
    samples : sequence of Sample
        Calls of an op on which the rule is to be checked, see `graphgrad.registry.sample`.

    Returns
    -------
    decorator
        For ``def rule(inputs, outputs, cotangents, attrs)``. ``inputs`` has one entry per argument
        of the op, or of the function that is called: a `Tensor`, a list of them for a tuple, or the
        Relax value of a shape or number. ``outputs`` and ``cotangents`` have one `Tensor` per
        output; an output that nothing reads has a zero cotangent. The rule returns one cotangent
        per input (`Tensor` or Relax expression, in the input's shape or one broadcast from it);
        ``None`` means *not differentiable there*.

    Raises
    ------
    RuleError
        The op does not exist, or has a rule of the same origin already; or samples are given for
        a function.

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
    return _decorator(op, "elementwise", samples, singular=singular)


def linear(
    op: str, *, samples: Sequence[Sample], affine: bool = False
) -> Callable[[Function], Function]:
    """Register ``f(*inputs, ct)`` of a linear op, which reads only the types of the inputs."""
    return _decorator(op, "linear", samples, affine=affine)


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

    Parameters
    ----------
    ops : str
        Names as of `register_gradient`.

    Raises
    ------
    RuleError
        An op does not exist, or has a rule already.
    """
    caller = inspect.currentframe().f_back.f_globals["__name__"]  # type: ignore[union-attr]
    for op in ops:
        _add(Rule(op, "nondifferentiable", None, origin=_origin(caller)))
