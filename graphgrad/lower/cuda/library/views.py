"""Tensors as a library is told of them: where in another tensor's memory their elements are.

A library reads and writes with any strides, from any element on. So what only gives a tensor's
elements other indices, as a permutation, a reshape and a part of it do, needs no memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
from tvm import relax

from ....ir.calls import RESHAPES, axes_of_permutation, calls_op
from ....ir.kernel_structure import static
from ....ir.tensor import has_shape, type_shape
from ....runtime.cudnn.problem import TensorForm, strides_of
from ...graph.permuted_products import PERMUTATION

SPLIT = "relax.split"

_DTYPES = ("float16", "bfloat16", "float32")
"""Not float64: a GPU's library computes it by plans that need memory beyond measure."""


@dataclass(frozen=True)
class View:
    """A tensor whose elements are those of another one, which is in memory.

    Attributes
    ----------
    tensor : relax.Expr
        As it is in memory.
    shape : tuple of int or None
        None for an extent that is not known.
    strides : tuple of int
        In elements.
    offset : int
        The place of the first element.
    """

    tensor: Any
    shape: tuple[int | None, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def form(self) -> TensorForm | None:
        """As a library is told of it; None if it has no fixed shape, or is no float tensor."""
        extents = [extent for extent in self.shape if extent is not None]
        dtype = str(self.tensor.ty.dtype)
        if len(extents) < len(self.shape) or dtype not in _DTYPES:
            return None
        whole = prod(static(extent) or 0 for extent in type_shape(self.tensor.ty))
        form = TensorForm(tuple(extents), self.strides, dtype, self.offset)
        return form if form.reach == whole and not form.offset else replace(form, elements=whole)

    def permuted(self, axes: Sequence[int]) -> View:
        """The view whose axes are those of this one, in another order."""
        shape = tuple(self.shape[axis] for axis in axes)
        return replace(self, shape=shape, strides=tuple(self.strides[axis] for axis in axes))

    def part(self, axis: int, begin: int, extent: int) -> View:
        """The elements of some neighboring indices of an axis."""
        shape = (*self.shape[:axis], extent, *self.shape[axis + 1 :])
        return replace(self, shape=shape, offset=self.offset + begin * self.strides[axis])

    def reshaped(self, extents: Sequence[int]) -> View | None:
        """The view with another shape; None if no strides reach its elements in order."""
        if None in self.shape or 0 in self.shape:
            return None
        pairs = zip(self.shape, self.strides, strict=True)
        merged: list[tuple[int, int]] = []  # extents and strides of axes that are not even
        for extent, stride in ((int(n or 0), step) for n, step in pairs if n != 1):
            is_even = bool(merged) and merged[-1][1] == extent * stride
            before = merged.pop()[0] if is_even else 1
            merged.append((before * extent, stride))
        strides: list[int] = []
        inner, step = 1, 1
        for extent in reversed(extents):
            if inner == 1 and merged and extent > 1:
                inner, step = merged.pop()
            if inner % extent:
                return None
            strides.insert(0, step)
            inner, step = inner // extent, step * extent
        return replace(self, shape=tuple(extents), strides=tuple(strides))


def plain(tensor: Any) -> View:
    """A tensor as it is in memory."""
    is_known = has_shape(tensor.ty)
    shape = tuple(static(extent) for extent in type_shape(tensor.ty)) if is_known else (None,)
    return View(tensor, shape, strides_of([extent or 0 for extent in shape]))


def view_of(
    expr: Any,
    bound: Mapping[Any, Any],
    ops: Collection[str] = (PERMUTATION, *RESHAPES),
    may_split: Callable[[Any], bool] = lambda split: False,
) -> View:
    """The view that an expression is of a tensor in memory.

    Parameters
    ----------
    expr : relax.Expr
    bound : mapping
        The values of those variables that may be looked behind.
    ops : collection of str
        Those that may be looked behind.
    may_split : callable
        Whether a variable of a split may be, whose parts are then read in the whole.
    """
    value: Any = bound.get(expr)
    if isinstance(value, tvm.ir.Var):
        return view_of(value, bound, ops, may_split)
    op = next((op for op in ops if calls_op(value, op)), None)
    if op == PERMUTATION:
        inner = view_of(value.args[0], bound, ops, may_split)
        return inner.permuted(axes_of_permutation(value))
    if op in RESHAPES:
        shape = [static(extent) for extent in type_shape(value.ty)]
        extents = [extent for extent in shape if extent is not None]
        before = view_of(value.args[0], bound, ops, may_split), plain(value.args[0])
        views = (each.reshaped(extents) for each in before if len(extents) == len(shape))
        return next((each for each in views if each is not None), plain(expr))
    if isinstance(value, relax.TupleGetItem) and may_split(value.tuple_value):
        split = bound[value.tuple_value]
        whole = view_of(split.args[0], bound, ops, may_split)
        axis = int(split.attrs.axis) % len(whole.shape)
        extents = [int(type_shape(ty)[axis]) for ty in split.ty.fields]
        place = int(value.index)
        return whole.part(axis, sum(extents[:place]), extents[place])
    return plain(expr)


def memory_of(tensor: Any, bound: Mapping[Any, Any]) -> Any:
    """The tensor with the elements of another in memory: a library is told the form alone."""
    return view_of(tensor, bound, RESHAPES).tensor
