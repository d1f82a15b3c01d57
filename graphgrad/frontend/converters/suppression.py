"""Choice of the boxes of a detector that do not overlap better ones."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Tensor
from ...ops import functional as op
from .node import Node, converter

_MAX_BOXES = 2.0**24
"""float32 holds every integer up to it."""


@converter("NonMaxSuppression")
def non_max_suppression(node: Node) -> Tensor:
    """The chosen boxes, best first in each class of each image: rows of image, class and box.

    TVM's importer has other defaults than ONNX, and takes them where a limit is no constant. Its
    kernel takes scores from 0 down for boxes that are out already.
    """
    most = int(_number(node, 2, 0))
    if most < 1:
        return node.emitter.lift(relax.const(np.zeros((0, 3), "int64"), "int64"))
    boxes, scores = node.tensor(0), node.tensor(1)
    count = boxes.shape[1]
    if node.attribute("center_point_box", 0):
        x, y, width, height = op.split(boxes, 4, axis=2)
        ends = [y - height / 2, x - width / 2, y + height / 2, x + width / 2]
        boxes = op.concat(ends, axis=2)
    order = node.emitter.emit(relax.op.argsort(scores.expr, axis=2, descending=True))
    position = node.emitter.emit(relax.op.argsort(order.expr, axis=2))
    rating = _MAX_BOXES - position.astype("float32")  # the best score's is the highest
    if node.has(4):
        is_enough = op.greater(scores, _number(node, 4, 0.0))
        rating = op.where(is_enough, rating, 0.0)
    chosen = relax.op.vision.all_class_non_max_suppression(
        boxes.expr,
        rating.expr,
        relax.const(min(most, count) if isinstance(count, int) else most, "int64"),
        relax.const(_least_overlap(_number(node, 3, 0.0)), "float32"),
        relax.const(0.0, "float32"),
        output_format="onnx",
    )
    return node.emitter.emit(chosen)[0]


def _least_overlap(threshold: float) -> float:
    """The smallest number above a threshold: the kernel drops a box from it on, ONNX beyond it."""
    above = np.nextafter(np.float32(threshold), np.float32(np.inf))
    return float(max(above, np.finfo("float32").tiny))  # at 0 the kernel chooses nothing


def _number(node: Node, index: int, default: float) -> float:
    """An input that is one number, known at import."""
    value = node.constant(index)
    if value is None:
        return default
    if value.size != 1:
        raise ModelError(f"its input {index} must be one number; it has {value.size}")
    number: float = value.item()
    return number
