"""`check_grads`: gradients of rules, functions, models, tensor expressions and given pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm

from ..errors import ArgumentError, GradientMismatch, InputError
from ..frontend.model import Model
from ..ir.callables import location_of
from ..ir.tensor import is_float
from ..registry.rule import find, user_rule
from .compare import MODES, Arrays, Tolerances, float_positions, precision_of
from .functions import Settings, check_function
from .point import Differentiated, check_at
from .result import GradientCheck, PartCheck
from .samples import RuleChecker, largest_sample, sample_module
from .speed import measure_speed
from .subject import Subject, as_arrays, of_function, of_model
from .tensor_expressions import Expressions, check_expressions, expressions_of, is_tensors


def check_grads(
    subject: Any,
    inputs: Any = None,
    *,
    backward: Callable[..., Any] | None = None,
    order: int = 1,
    modes: Sequence[str] = ("rev",),
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    jacobian: bool = False,
) -> GradientCheck:
    """Check gradients against central differences along random directions.

    Everything is promoted to float64 first, tensor expressions as the compiled kernels of the
    stages that are derived from them. What cannot be is checked in its own precision, and the
    result says so. A function and a model are checked part by part (each ONNX node, at the
    values that arise in the model), so that an error names the culprit, and then as a whole.

    Parameters
    ----------
    subject : Model, IRModule, (IRModule, str), str, (Tensor, Tensor) or callable
        A model, with respect to its float inputs and the parameters that train; a Relax function
        (``main``, or the one that is named), with respect to all floats that it takes; the name
        of an op such as ``"relax.nn.conv2d"``, whose rule is checked on all of its samples; tensor
        expressions ``(output, inputs)``, each a tensor or a list, whose gradient is that of
        `te_gradient` or `backward`; or a numpy function ``forward(*inputs) -> outputs``, whose
        gradient is `backward`.
    inputs : arrays, optional
        For a model as in its call, an array or a dict by name; for a function a list or a dict by
        name; for tensor expressions a list, or a dict by the names of placeholders; for a numpy
        function a list of arrays. Values are drawn where none are given, but for numpy functions:
        floats in (-1, 1), integers 0 and 1, symbolic dimensions 3. If the subject is the output of
        tensor expressions alone, these are the input tensors, and all values are drawn.
    backward : callable, optional
        ``backward(inputs, outputs, cotangents) -> gradients`` of a numpy function or of tensor
        expressions, with lists of arrays or tensors: one cotangent per output, one gradient per
        input; None for an input that is no float, and for one of a numpy function that has no
        gradient, which is then not checked.
    order : 1 or 2
        With 2, the gradient's gradient is checked too. A given pair of numpy functions has none.
    modes : sequence of "fwd" and "rev"
        ``"rev"``: gradients, of `vjp` or `te_gradient`; ``"fwd"``: tangents, of `jvp` or `te_jvp`;
        with both it is checked, too, that they agree. A given backward pass has no forward mode.
    rtol : float, optional
        Relative error that passes: 1e-8 in float64, 1e-3 in float32, 5e-2 in half precision. It is
        relative to the largest of the derivative, the norm of the input's gradient and 1e-6 of the
        norm of all gradients.
    atol : float, optional
        Absolute error that passes besides; by default 64 roundings of the summed terms, over the
        step: what rounding can add to a difference.
    seed : int
        Of directions, cotangents and drawn inputs.
    jacobian : bool
        Compare every partial derivative too, where there are at most 2048 inputs and outputs.

    Returns
    -------
    GradientCheck
        What was checked, in which precision, how well it agrees, and which kinks were met; and how
        fast each rule of yours is beside the gradient that would be derived without it (of samples,
        by the largest), measured once for equal calls, in some 20 seconds at most. Close to
        a kink, a smaller step decides. At a kink differences cannot judge: the gradient beside it
        is checked, and the result says so. Samples of rules must not lie on kinks.

    Raises
    ------
    GradientMismatch
        A gradient is wrong: names op, ONNX node, input, the worst element, and both numbers.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    ArgumentError, InputError
        The arguments make no sense.

    Examples
    --------
    >>> gg.check_grads(gg.from_onnx("model.onnx"))
    >>> gg.check_grads("relax.nn.conv2d", order=2)
    >>> gg.check_grads((topi.nn.softmax(x), x))
    >>> gg.check_grads(np.sin, [x], backward=lambda xs, ys, cts: [cts[0] * np.cos(xs[0])])
    """
    _check_choices(order, modes, backward)
    settings = Settings(order, Tolerances(rtol, atol), jacobian, seed, tuple(modes))
    expressions, arrays = _tensor_expressions(subject, inputs)
    if expressions is not None:
        return check_expressions(expressions, arrays, settings, backward)
    if backward is not None and not _is_numpy_function(subject):
        raise ArgumentError(
            "backward= belongs to a numpy function or tensor expressions, given as the subject"
        )
    generator = np.random.default_rng(seed)
    if isinstance(subject, str):
        if inputs is not None:
            raise ArgumentError(
                f"{subject!r} is checked on the samples of its rule: give no inputs"
            )
        return _check_rule(subject, settings)
    if _is_numpy_function(subject):
        return _check_pair(subject, backward, inputs, settings)
    return _all_agree(_relax_subject(subject, inputs, generator), settings)


def _check_choices(order: int, modes: Sequence[str], backward: Any) -> None:
    """Raise `ArgumentError` unless the order and the modes are served."""
    if order not in (1, 2) or isinstance(order, bool):
        raise ArgumentError(f"order={order!r}: expected 1 or 2")
    is_valid = isinstance(modes, list | tuple) and modes and all(mode in MODES for mode in modes)
    if not is_valid or len(set(modes)) != len(modes):
        raise ArgumentError(
            f"modes={modes!r}: give a sequence of 'fwd', the forward mode, and 'rev', the reverse "
            "mode, each at most once"
        )
    if backward is not None and "fwd" in modes:
        raise ArgumentError(
            f"modes={modes!r}: a given backward function has no forward mode; leave 'fwd' out"
        )


def _tensor_expressions(subject: Any, inputs: Any) -> tuple[Expressions | None, Any]:
    """Tensor expressions and the arrays given for them; (None, None) for any other subject.

    Tensors as inputs are what the expressions are functions of, so that no arrays are given then.
    """
    if is_tensors(subject) and is_tensors(inputs):
        return expressions_of(subject, inputs), None
    if isinstance(subject, tuple) and len(subject) == 2 and all(map(is_tensors, subject)):
        return expressions_of(*subject), inputs
    return None, None


def _is_numpy_function(subject: Any) -> bool:
    """Whether a subject is to be called with numpy arrays."""
    return callable(subject) and not isinstance(subject, str | Model | tvm.IRModule)


def _relax_subject(subject: Any, inputs: Any, generator: np.random.Generator) -> Subject:
    """The Relax function that a subject stands for, with values for all that it takes."""
    if isinstance(subject, Model):
        return of_model(subject, inputs, generator)
    if isinstance(subject, tvm.IRModule):
        return of_function(subject, "main", inputs, generator)
    if isinstance(subject, tuple) and len(subject) == 2:
        mod, name = subject
        if isinstance(mod, tvm.IRModule) and isinstance(name, str):
            return of_function(mod, name, inputs, generator)
    raise ArgumentError(
        "subject: expected a Model, an IRModule with main, a pair of an IRModule and a function's "
        "name, the name of an op, tensor expressions (output, inputs), or a numpy function; given "
        f"a {type(subject).__name__}"
    )


def _all_agree(subject: Subject, settings: Settings) -> GradientCheck:
    """Check every part of a function and the whole; raise at the first mismatch."""
    parts = []
    for part in check_function(subject, settings):
        if part.mismatch is not None:
            raise part.mismatch
        parts.append(part)
    return GradientCheck(parts)


def _check_rule(op: str, settings: Settings) -> GradientCheck:
    """Check the gradient rule of an op on all of its samples."""
    rule = find(op)
    if rule is None:
        raise ArgumentError(f"no gradient rule is registered for {op!r}")
    if rule.function is None:
        raise ArgumentError(f"{op} is declared not differentiable: there is nothing to check")
    if not rule.samples:
        raise ArgumentError(
            f"the rule of {op} ({rule.location}) has no samples to be checked on; give some with "
            "samples=[graphgrad.registry.sample(...)]"
        )
    cases = [(rule, sample) for sample in rule.samples]
    checker = RuleChecker(
        cases, settings.order, settings.tolerances, settings.jacobian, modes=settings.modes
    )
    where = user_rule(rule)
    parts = [
        PartCheck(
            f"{op} [{sample}]", "float64", checker.check(index, settings.seed), op=op, rule=where
        )
        for index, sample in enumerate(rule.samples)
    ]
    if where is not None:
        largest, arrays = largest_sample(rule, np.random.default_rng(settings.seed))
        mod = sample_module(op, rule.samples[largest], "main")
        speed = measure_speed(mod, "main", float_positions(arrays), arrays)
        parts[largest] = replace(parts[largest], speed=speed)
    return GradientCheck(parts)


def _check_pair(
    forward: Callable[..., Any],
    backward: Callable[..., Any] | None,
    inputs: Any,
    settings: Settings,
) -> GradientCheck:
    """Check a numpy function against the backward function that is given for it."""
    if backward is None:
        raise ArgumentError(
            "a numpy function needs backward=, a function of inputs, outputs and cotangents that "
            "returns one gradient per input"
        )
    if settings.order != 1:
        raise ArgumentError("order=2: a given backward function has no gradient of its own")
    point = as_arrays(inputs)
    name = getattr(forward, "__name__", "forward")
    pair = _Pair(forward, backward)
    function = Differentiated(
        pair.run, pair.gradients, pair.positions(point), None, precision_of(point)
    )
    generator = np.random.default_rng(settings.seed)
    label = f"{name}, by backward at {location_of(backward)}"
    try:
        checked = check_at(
            function, point, generator, label, settings.tolerances, jacobian=settings.jacobian
        )
    except GradientMismatch as error:
        error.op = name
        raise
    return GradientCheck([PartCheck(name, function.precision.name, checked.inputs, op=name)])


class _Pair:
    """A numpy function and its backward, with lists of arrays on all sides."""

    def __init__(self, forward: Callable[..., Any], backward: Callable[..., Any]):
        self._forward = forward
        self._backward = backward
        self._where = location_of(backward)

    def run(self, *inputs: np.ndarray) -> Arrays:
        """The float outputs."""
        return [output for output in self._outputs(list(inputs)) if is_float(str(output.dtype))]

    def gradients(self, inputs: Arrays, cotangents: Arrays) -> Arrays:
        """The gradients that are not None."""
        answer = self._answer(inputs, cotangents)
        return [np.asarray(gradient) for gradient in answer if gradient is not None]

    def positions(self, inputs: Arrays) -> list[int]:
        """The inputs for which there is a gradient."""
        # Only a call tells which gradients are None; any cotangents do for that.
        cotangents = [np.ones_like(output) for output in self.run(*inputs)]
        answer = self._answer(inputs, cotangents)
        positions = [position for position, gradient in enumerate(answer) if gradient is not None]
        for position in positions:
            if not is_float(str(inputs[position].dtype)):
                raise InputError(
                    f"{self._where}: backward returned a gradient for input {position} of dtype "
                    f"{inputs[position].dtype}; return None for what is no float"
                )
        if not positions:
            raise InputError(
                f"{self._where}: backward returned no gradient at all: there is nothing to check"
            )
        return positions

    def _outputs(self, inputs: Arrays) -> Arrays:
        """All outputs of the function, as a list."""
        outputs = self._forward(*inputs)
        return [
            np.asarray(output)
            for output in (outputs if isinstance(outputs, list | tuple) else [outputs])
        ]

    def _answer(self, inputs: Arrays, cotangents: Arrays) -> list[Any]:
        """What `backward` returns, one entry per input; `cotangents` are of float outputs alone."""
        outputs = self._outputs(inputs)
        remaining = iter(cotangents)
        by_output = [next(remaining) if is_float(str(output.dtype)) else None for output in outputs]
        answer = self._backward(list(inputs), outputs, by_output)
        answer = list(answer) if isinstance(answer, list | tuple) else [answer]
        if len(answer) != len(inputs):
            raise InputError(
                f"{self._where}: backward returned {len(answer)} gradient(s) for {len(inputs)} "
                "input(s); return one for each, None where there is none"
            )
        return answer
