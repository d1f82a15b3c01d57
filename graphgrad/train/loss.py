"""Losses by name: how each is written, and which targets it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..errors import InputError, ModelError
from ..ops import functional as op
from ..ops.tensor import Dimension, Tensor, is_float, type_shape


@dataclass(frozen=True)
class CrossEntropy:
    """Mean over the batch (and any positions) of −log softmax(logits) at the labels.

    Logits are (N, C, …), labels (N, …) of any integer dtype, from 0 to C − 1.
    """

    name = "cross_entropy"

    def target_type(self, output: relax.TensorType) -> relax.TensorType:
        """Return the type of the labels that go with logits of a type."""
        shape = type_shape(output)
        if len(shape) < 2 or not is_float(str(output.dtype)):
            raise ModelError(
                f"cross_entropy needs float logits of shape (N, classes, …), but the model's "
                f"first output is {output.dtype} of shape {tuple(shape)}; choose another loss"
            )
        return relax.TensorType([shape[0], *shape[2:]], "int64")

    def prepare(self, targets: np.ndarray, output: relax.TensorType) -> np.ndarray:
        """Return the labels as int64, after checking their dtype and range.

        Raises
        ------
        InputError
        """
        if not np.issubdtype(targets.dtype, np.integer):
            raise InputError(
                f"targets: cross_entropy takes integer labels, given {targets.dtype}; convert "
                "class numbers with .astype('int64'), one-hot rows with .argmax(1)"
            )
        classes = type_shape(output)[1]
        wrong = np.argwhere((targets < 0) | (targets >= classes))
        if len(wrong):
            index = tuple(int(i) for i in wrong[0])
            raise InputError(
                f"targets: label {targets[index]} at index {list(index)} is out of range; the "
                f"model has {classes} classes, so labels go from 0 to {classes - 1} "
                f"({len(wrong)} label(s) are out of range)"
            )
        return targets.astype("int64")

    def emit(self, output: Tensor, targets: Tensor) -> Tensor:
        """Emit the loss of a batch, a scalar."""
        return op.nll_loss(op.log_softmax(output, axis=1), targets, reduction="mean")


@dataclass(frozen=True)
class MeanSquaredError:
    """Mean over all elements of (output − target)²; targets are like the output."""

    name = "mse"

    def target_type(self, output: relax.TensorType) -> relax.TensorType:
        """Return the type of the targets that go with outputs of a type."""
        if not is_float(str(output.dtype)):
            raise ModelError(
                f"mse needs a float output, but the model's first output is {output.dtype}; "
                "choose another loss"
            )
        return output

    def prepare(self, targets: np.ndarray, output: relax.TensorType) -> np.ndarray:
        """Return the targets in the output's dtype.

        Raises
        ------
        InputError
            They are no real numbers.
        """
        if not np.issubdtype(targets.dtype, np.number) or np.iscomplexobj(targets):
            raise InputError(f"targets: mse takes numbers, given {targets.dtype}")
        return targets.astype(str(output.dtype))

    def emit(self, output: Tensor, targets: Tensor) -> Tensor:
        """Emit the loss of a batch, a scalar."""
        difference = output - targets
        extents: list[Dimension] = output.shape
        return op.divide_by_count(op.reduce_sum(difference * difference), extents)


Loss = CrossEntropy | MeanSquaredError

LOSSES: dict[str, Loss] = {loss.name: loss for loss in (CrossEntropy(), MeanSquaredError())}


def check_target_shape(targets: np.ndarray, ty: Any) -> None:
    """Raise unless targets have the shape of a type.

    Raises
    ------
    InputError
    """
    expected = tuple(type_shape(ty))
    if targets.shape != expected:
        raise InputError(f"targets: expected shape {expected}, given {targets.shape}")
