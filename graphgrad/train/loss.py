"""Losses of a step: how each is written, and which targets it takes.

Each is made by a function of its name; values and defaults are those of ``torch.nn.functional``.
All are means over the batch and any positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ArgumentError, InputError, ModelError
from ..ir.tensor import Tensor, is_float, type_shape
from ..ops import functional as op
from ..ops import losses
from ..runtime.arrays import is_number
from .shapes import Shaped

_UNBOUNDED = (-math.inf, math.inf)


@dataclass(frozen=True)
class LabelLoss:
    """A loss that compares scores (N, C, …) with labels (N, …), integers from 0 to C − 1.

    Attributes
    ----------
    name : str
    function : callable
        One of `graphgrad.ops.losses`.
    weight : tuple of float or None
        One per class.
    ignore_index : int or None
        A label that does not count.
    label_smoothing : float
    """

    name: str
    function: Callable[..., Tensor]
    weight: tuple[float, ...] | None = None
    ignore_index: int | None = None
    label_smoothing: float = 0.0

    takes_labels = True

    def target_type(self, output: relax.TensorType) -> relax.TensorType:
        """The type of the labels that go with scores of a type.

        Raises
        ------
        ModelError
            They are no scores of classes.
        """
        shape = type_shape(output)
        if len(shape) < 2 or not is_float(str(output.dtype)):
            raise ModelError(
                f"{self.name} needs float scores of shape (N, classes, …), but the model's "
                f"first output is {output.dtype} of shape {tuple(shape)}; choose another loss"
            )
        if self.weight is not None and len(self.weight) != shape[1]:
            raise ModelError(
                f"{self.name} has {len(self.weight)} class weights, but the model's first output "
                f"has {shape[1]} classes"
            )
        return relax.TensorType([shape[0], *shape[2:]], "int64")

    def prepare(self, targets: np.ndarray, output: relax.TensorType | Shaped) -> np.ndarray:
        """The labels as int64, after checking their dtype and range.

        Raises
        ------
        InputError
        """
        if targets.dtype.kind not in "iu":
            raise InputError(
                f"targets: {self.name} takes integer labels, given {targets.dtype}; convert "
                "class numbers with .astype('int64'), one-hot rows with .argmax(1)"
            )
        batch, classes, *rest = map(int, output.shape)
        axis = f"; axis 1 of the model's first output, {(batch, classes, *rest)}, is the classes"
        check_target_shape(targets, (batch, *rest), axis)
        labels = targets.astype("int64", copy=False)
        # As unsigned numbers negative ones are the largest: one comparison finds all that is wrong.
        if (labels.view("uint64") >= classes).any():
            self._check_range(targets, classes)
        return labels

    def _check_range(self, targets: np.ndarray, classes: int) -> None:
        """Raise `InputError` unless all labels that count are those of classes."""
        ignored = False if self.ignore_index is None else targets == self.ignore_index
        # An array, because of a plain False the complement is −1.
        wrong = np.argwhere(((targets < 0) | (targets >= classes)) & ~np.asarray(ignored))
        if len(wrong):
            index = tuple(int(i) for i in wrong[0])
            raise InputError(
                f"targets: label {targets[index]} at index {list(index)} is out of range; the "
                f"model has {classes} classes, so labels go from 0 to {classes - 1} "
                f"({len(wrong)} label(s) are out of range)"
            )

    def emit(self, output: Tensor, targets: Tensor) -> Tensor:
        """Emit the loss of a batch, a scalar."""
        settings: dict[str, Any] = {}
        if self.weight is not None:
            weights = relax.const(np.array(self.weight, output.dtype), output.dtype)
            settings["weight"] = output.emitter.lift(weights)
        if self.ignore_index is not None:
            settings["ignore_index"] = self.ignore_index
        if self.label_smoothing:
            settings["label_smoothing"] = self.label_smoothing
        return self.function(output, targets, **settings)

    def divisor(self, output: relax.TensorType, targets: Tensor) -> Tensor | float:
        """The divisor of the mean: a float64 scalar that is emitted, or a number.

        It is the count of labels; of those that count, if some are ignored; and if classes have
        weights, the sum of the weights of these labels.
        """
        is_counted = None
        if self.ignore_index is not None:
            is_counted = op.not_equal(targets, self.ignore_index)
        if self.weight is not None:
            weights = targets.emitter.lift(relax.const(np.array(self.weight), "float64"))
            # Labels that are ignored may be no classes: class 0 stands in, and counts 0.
            valid_labels = targets if is_counted is None else op.where(is_counted, targets, 0)
            label_weights = op.take(
                weights, op.reshape(valid_labels, [math.prod(valid_labels.shape)]), axis=0
            )
            label_weights = op.reshape(label_weights, valid_labels.shape)
            return op.reduce_sum(
                label_weights if is_counted is None else op.where(is_counted, label_weights, 0.0)
            )
        if is_counted is not None:
            return op.reduce_sum(is_counted.astype("float64"))
        return float(math.prod(type_shape(output)[:1] + type_shape(output)[2:]))


@dataclass(frozen=True)
class ValueLoss:
    """A loss that compares the output with targets of its shape, number by number.

    Attributes
    ----------
    name : str
    function : callable
        One of `graphgrad.ops.losses`.
    settings : tuple of (str, value)
    within : (float, float)
        Bounds that targets keep.
    """

    name: str
    function: Callable[..., Tensor]
    settings: tuple[tuple[str, Any], ...] = ()
    within: tuple[float, float] = _UNBOUNDED

    takes_labels = False

    def target_type(self, output: relax.TensorType) -> relax.TensorType:
        """The type of the targets that go with outputs of a type.

        Raises
        ------
        ModelError
            The output has no float dtype.
        """
        if not is_float(str(output.dtype)):
            raise ModelError(
                f"{self.name} needs a float output, but the model's first output is "
                f"{output.dtype}; choose another loss"
            )
        return output

    def prepare(self, targets: np.ndarray, output: relax.TensorType | Shaped) -> np.ndarray:
        """The targets in the output's dtype.

        Raises
        ------
        InputError
            They are no real numbers, or out of bounds.
        """
        if not is_number(targets.dtype) or targets.dtype.kind == "b":
            raise InputError(f"targets: {self.name} takes numbers, given {targets.dtype}")
        low, high = self.within
        if (low, high) != _UNBOUNDED and ((targets < low) | (targets > high)).any():
            raise InputError(
                f"targets: {self.name} takes numbers from {low:g} to {high:g}, given "
                f"{targets.min():g} to {targets.max():g}"
            )
        return targets.astype(str(output.dtype))

    def emit(self, output: Tensor, targets: Tensor) -> Tensor:
        """Emit the loss of a batch, a scalar."""
        return self.function(output, targets, **dict(self.settings))

    def divisor(self, output: relax.TensorType, targets: Tensor) -> Tensor | float:
        """The divisor of the mean: the count of numbers, or of examples for `kl_div`."""
        extents = type_shape(output)
        by_example = dict(self.settings).get("reduction") == "batchmean"
        return float(math.prod(extents[:1] if by_example else extents))


Loss = LabelLoss | ValueLoss


def cross_entropy(
    *,
    weight: Sequence[float] | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> Loss:
    """−log softmax(logits) at the labels.

    Parameters
    ----------
    weight : sequence of float, optional
        One per class; the mean divides by the sum of the weights that count.
    ignore_index : int, optional
        A label that does not count.
    label_smoothing : float
        The share, from 0 to 1, that is spread over all classes.

    Raises
    ------
    ArgumentError
        A weight is negative or no finite number, `ignore_index` is no whole number, or the share
        is not one.
    """
    if not isinstance(label_smoothing, Real) or not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"cross_entropy: label_smoothing={label_smoothing!r} is not in [0, 1]")
    weights = _weights("cross_entropy", weight)
    ignored = _ignored("cross_entropy", ignore_index)
    return LabelLoss("cross_entropy", losses.cross_entropy, weights, ignored, label_smoothing)


def nll(*, weight: Sequence[float] | None = None, ignore_index: int | None = None) -> Loss:
    """Minus the outputs, taken as log-probabilities, at the labels; see `cross_entropy`."""
    return LabelLoss("nll", losses.nll, _weights("nll", weight), _ignored("nll", ignore_index))


def mse() -> Loss:
    """(output − target)²."""
    return ValueLoss("mse", losses.mse)


def l1() -> Loss:
    """|output − target|."""
    return ValueLoss("l1", losses.l1)


def smooth_l1(beta: float = 1.0) -> Loss:
    """A square within `beta` of the target, a line of slope 1 beyond."""
    return ValueLoss("smooth_l1", losses.smooth_l1, (("beta", _positive("beta", beta)),))


def huber(delta: float = 1.0) -> Loss:
    """A square within `delta` of the target, a line of slope `delta` beyond."""
    return ValueLoss("huber", losses.huber, (("delta", _positive("delta", delta)),))


def bce() -> Loss:
    """The binary cross entropy of probabilities."""
    return ValueLoss("bce", losses.bce, within=(0.0, 1.0))


def bce_with_logits() -> Loss:
    """The binary cross entropy of logits, computed so that it never overflows."""
    return ValueLoss("bce_with_logits", losses.bce_with_logits, within=(0.0, 1.0))


def kl_div() -> Loss:
    """The divergence of probabilities from the outputs, taken as log-probabilities.

    It is divided by the size of the batch, which makes it the mean of the divergences.
    """
    return ValueLoss("kl_div", losses.kl_div, (("reduction", "batchmean"),), within=(0.0, 1.0))


def _weights(name: str, weight: Sequence[float] | None) -> tuple[float, ...] | None:
    """The weights of classes, checked; None if all count equally. `name` is the loss's."""
    if weight is None:
        return None
    try:
        weights = tuple(float(number) for number in weight)
    except (TypeError, ValueError):
        weights = ()
    if not weights or not all(0 <= number < math.inf for number in weights):
        raise ArgumentError(
            f"{name}: weight={weight!r} must be a finite number, at least 0, for each class"
        )
    return weights


def _ignored(name: str, index: int | None) -> int | None:
    """The label that does not count, checked; None if all do. `name` is the loss's."""
    if index is None:
        return None
    if isinstance(index, bool) or not isinstance(index, int | np.integer):
        raise ArgumentError(f"{name}: ignore_index={index!r} must be a whole number")
    return int(index)


def _positive(name: str, value: float) -> float:
    """A setting of a loss, after checking that it is a finite number above 0."""
    if not isinstance(value, Real) or not 0 < value < math.inf:
        raise ArgumentError(f"{name}={value!r} must be a finite number above 0")
    return float(value)


def check_target_shape(targets: np.ndarray, expected: tuple[int, ...], reason: str = "") -> None:
    """Raise unless targets have a shape; a reason for it ends the message.

    Raises
    ------
    InputError
    """
    if targets.shape != expected:
        raise InputError(f"targets: expected shape {expected}, given {targets.shape}{reason}")


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        cross_entropy(),
        nll(),
        mse(),
        l1(),
        smooth_l1(),
        huber(),
        bce(),
        bce_with_logits(),
        kl_div(),
    )
}
