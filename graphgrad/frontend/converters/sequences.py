"""Operators on sequences of tensors; a sequence is a Relax tuple."""

from __future__ import annotations

from itertools import accumulate

from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Dimension, dimension_text
from ...ops import functional as op
from ...ops.movement import slice_from
from .node import Node, converter
from .shape import normalized

_MOST_PARTS = 1 << 14


@converter("SequenceInsert")
def sequence_insert(node: Node) -> relax.Tuple:
    """The sequence with a tensor before a position, or at the end.

    A negative position counts from the end, where TVM's importer is off by one.
    """
    sequence = node.inputs[0]
    if sequence is None or not isinstance(sequence.ty, relax.TupleType):
        raise ModelError("its first input is no sequence")
    tensors = list(sequence)
    value = node.constant(2)
    position = len(tensors) if value is None else int(value.item())
    if not -len(tensors) <= position <= len(tensors):
        raise ModelError(f"its position {position} is not in a sequence of {len(tensors)}")
    tensors.insert(position, node.tensor(1).expr)
    return relax.Tuple(tensors)


@converter("SplitToSequence")
def split_to_sequence(node: Node) -> relax.Tuple:
    """Parts of x along an axis: of given extents, or of one extent, but for the last.

    TVM's importer makes parts of one extent as equal as it can, which is another split.
    """
    x = node.tensor(0)
    (axis,) = normalized([node.attribute("axis", 0)], x.ndim)
    sizes = _sizes(node, x.shape[axis])
    parts = [
        slice_from(x, [axis], [start], [1], [*x.shape[:axis], size, *x.shape[axis + 1 :]])
        for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False)
    ]
    # keepdims counts only where the sizes are left out, and all parts have an extent of 1.
    if not node.has(1) and not node.attribute("keepdims", 1):
        parts = [op.reshape(part, [*part.shape[:axis], *part.shape[axis + 1 :]]) for part in parts]
    return relax.Tuple([part.expr for part in parts])


def _sizes(node: Node, extent: Dimension) -> list[int]:
    """The extents of the parts of an axis.

    Raises
    ------
    ModelError
        Their number is not known at import, or they are not those of the axis.
    """
    split = node.constant(1)
    if not isinstance(extent, int):
        raise ModelError(
            f"the extent of the axis that it splits is {dimension_text(extent)}, so how many parts "
            "there are is not known: import with shapes= that give it"
        )
    if split is not None and split.ndim:
        sizes = [int(size) for size in split]
        if min(sizes, default=0) < 0 or sum(sizes) != extent:
            raise ModelError(f"its parts {sizes} are not those of an axis of {extent}")
        return sizes
    size = 1 if split is None else int(split)
    if size < 1:
        raise ModelError(f"its parts have an extent of {size}: 1 or more is needed")
    if extent > _MOST_PARTS * size:
        raise ModelError(f"it has {-(-extent // size)} parts; {_MOST_PARTS} are served")
    return [min(size, extent - start) for start in range(0, extent, size)]
