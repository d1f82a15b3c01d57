"""Stages that only copy, read through: what reads the copy reads what it is a copy of.

And tensors that are zero: what reads one reads the number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from .graph import STEPWISE, Operation, map_expressions, operations, outputs_of, rewritten
from .kinds import Kind, kind_of
from .views import read_through
from .walk import (
    Expr,
    choice_of,
    dtype_name,
    identity,
    inline_lets,
    is_load,
    loaded,
    postorder,
    substituted,
    tensor_key,
    transformed,
)


def read_through_copies(tensors: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Tensors from stages that read no copies: no transposed, broadcast or shifted ones.

    A gradient has many of them, as a sum hands one cotangent to all that it adds up. Contractions
    keep the operands that they were given, and the steps of a scan that is run by segments what
    they read from outside.
    """
    order = operations(*tensors)
    if any(isinstance(op, te.ScanOp) and op.tag == STEPWISE for op in order):
        return list(tensors)
    return rewritten(tensors, _read_copy_sources)


def original(tensor: te.Tensor) -> te.Tensor:
    """The tensor that another one is equal to, element by element; itself if to none."""
    while _is_copy(tensor):
        source, indices = loaded(inline_lets(tensor.op.body[tensor.value_index]))
        loops = [identity(axis.var) for axis in tensor.op.axis]
        # A transposed copy, or a copy of a part, is another tensor.
        if [*map(identity, indices)] != loops or not _same_shape(source, tensor):
            break
        tensor = source
    return tensor


def copied_element(load: Expr) -> Expr:
    """The load of the element that a load reads a copy of; itself if of none."""
    while _is_copy(loaded(load)[0]):
        tensor, indices = loaded(load)
        pairs = [
            (axis.var, index.astype(dtype_name(axis.var.ty)))
            for axis, index in zip(tensor.op.axis, indices, strict=True)
        ]
        load = substituted(inline_lets(tensor.op.body[tensor.value_index]), pairs)
    return load


def reading_zeros(tensors: Sequence[te.Tensor], zeros: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Tensors whose maps read the number zero where they would read some tensors of zeros.

    Contractions and externs keep their operands.
    """
    keys = set(map(tensor_key, zeros))

    def element(node: Expr) -> Expr:
        is_zero = is_load(node) and tensor_key(loaded(node)[0]) in keys
        return tirx.const(0.0, dtype_name(node.ty)) if is_zero else node

    def change(op: Operation) -> list[te.Tensor] | None:
        is_map = isinstance(op, te.ComputeOp) and all(map(_is_map, outputs_of(op)))
        if not is_map or keys.isdisjoint(map(tensor_key, op.input_tensors)):
            return None
        return outputs_of(map_expressions(op, lambda body: transformed(body, element)))

    return rewritten(tensors, change) if keys else list(tensors)


def _read_copy_sources(op: Operation) -> list[te.Tensor] | None:
    if not isinstance(op, te.ComputeOp) or kind_of(op) is Kind.CONTRACTION:
        return None
    # What is a copy but at its border is read through where no border is read.
    result = read_through(op, _is_map)
    if _choices(result) > _choices(op):
        result = read_through(op, _is_copy)
    return outputs_of(result)


def _is_map(tensor: te.Tensor) -> bool:
    op = tensor.op
    if not isinstance(op, te.ComputeOp) or kind_of(op) not in (None, Kind.MAP):
        return False
    return not isinstance(op.body[tensor.value_index], tirx.Reduce)


def _is_copy(tensor: te.Tensor) -> bool:
    """Whether each element of a tensor is an element of another one, as it is."""
    return _is_map(tensor) and is_load(inline_lets(tensor.op.body[tensor.value_index]))


def _choices(op: Any) -> int:
    """Between how many pairs of values a stage chooses."""
    # The components of a reduction have one condition and all sources in common.
    first = op.body[0]
    roots = [first.condition, *first.source] if isinstance(first, tirx.Reduce) else op.body
    return sum(choice_of(node) is not None for node in postorder(*roots))


def _same_shape(a: te.Tensor, b: te.Tensor) -> bool:
    pairs = zip(a.shape, b.shape, strict=True)
    return all(x.same_as(y) or _equal_numbers(x, y) for x, y in pairs)


def _equal_numbers(a: Any, b: Any) -> bool:
    return isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm) and int(a) == int(b)
