"""Padding by copies of the tensor's own elements, and its adjoint.

`origin` is the index of the element that a border element is a copy of. `fold_border` is the
adjoint of padding: it adds each border element to the element that it was copied from, one axis at
a time, with work in proportion to the number of elements. A border may be longer than the axis:
mirrors and repetitions then go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx, topi

from ..errors import ModelError
from ..ir.kernel_structure import static
from ..ir.tensor import Tensor, type_shape
from ..layout.orders import Order
from ..layout.rule import LaidOut, Site, following, layout_rule
from .define import call_op, define_op
from .indexing import outside_value
from .legalize import legalization


def fold_border(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """The adjoint of padding one axis: each border element is added to its origin.

    Parameters
    ----------
    x : Tensor
        Padded along the axis.
    axis : int
        Not negative.
    before, after : int
        How many elements of the axis are border; not negative.
    mode : "reflect", "replicate" or "circular"
    """
    call = call_op(_FOLD_BORDER, [x.expr], axis=axis, before=before, after=after, mode=mode)
    return x.emitter.emit(call)


def check_border(shape: Sequence[Any], widths: Sequence[int], mode: str) -> None:
    """Refuse a border of copies around an axis that has no elements.

    Parameters
    ----------
    shape : sequence of int or expression
        Of what is padded; of a symbolic extent it is not known whether it is empty.
    widths : sequence of int
        Before and after the first axis, then the second, and so on.
    mode : str

    Raises
    ------
    ModelError
    """
    for axis, extent in enumerate(shape):
        before, after = widths[2 * axis : 2 * axis + 2]
        if mode != "constant" and (before or after) and static(extent) == 0:
            raise ModelError(
                f"relax.nn.pad in mode {mode!r}: axis {axis} of the shape {list(shape)} is empty, "
                f"so that its border of {before} and {after} elements has nothing to copy; give it "
                "an element, or pad it with a constant"
            )


def origin(index: Any, before: int, extent: Any, mode: str) -> Any:
    """The index of the element that the element `index` of a padded axis is a copy of.

    `extent` is that of the axis without its border, and `before` the length of the border in front.
    """
    position = index - before
    if mode == "replicate":
        return tirx.max(tirx.min(position, extent - 1), 0)
    if mode == "circular":
        # An empty axis must not divide by zero.
        return tirx.floormod(position, tirx.max(extent, 1))
    period = _mirror_period(extent)
    phase = tirx.floormod(position, period)
    return tirx.if_then_else(phase < extent, phase, period - phase)


def _mirror_period(extent: Any) -> Any:
    """The number of elements after which a mirrored axis begins again: the two ends occur once."""
    # At least 1: an axis of one element would have the period 0.
    return tirx.max(2 * (extent - 1), 1)


def _infer_type(call: relax.Call) -> relax.TensorType:
    x, attrs = call.args[0], call.attrs
    shape = type_shape(x.ty)
    shape[int(attrs.axis)] -= int(attrs.before) + int(attrs.after)
    return relax.TensorType(shape, x.ty.dtype)


def _compute(call: relax.Call, x: te.Tensor) -> te.Tensor:
    """The sum of the elements of a padded axis that are copies of one element."""
    attrs, shape = call.attrs, list(call.ty.shape.values)
    axis, before, after = int(attrs.axis), int(attrs.before), int(attrs.after)
    folding = _Folding(x, axis, before, after, shape[axis])
    folds = {
        "circular": folding.wrapped,
        "reflect": folding.mirrored,
        "replicate": folding.replicated,
    }
    fold = folds[str(attrs.mode)]()
    return te.compute(shape, lambda *i: fold(i), name="fold_border")


@dataclass(frozen=True)
class _Folding:
    """The three ways to fold the border of one axis; each gives an element of the result."""

    x: te.Tensor
    axis: int
    before: int
    after: int
    extent: Any

    def wrapped(self) -> Any:
        """The fold of a circular border: an element occurs once in each repetition of the axis."""
        repetition = self._repetitions(self.extent)

        def element(indices: Sequence[Any]) -> Any:
            position = tirx.floormod(self.before + indices[self.axis], self.extent)
            return te.sum(
                self._guarded(indices, position + repetition * self.extent), axis=repetition
            )

        return element

    def mirrored(self) -> Any:
        """The fold of a mirrored border, in periods of one way forth and one back.

        An element occurs on the way forth and, unless it is an end of the axis, on the way back.
        """
        period = _mirror_period(self.extent)
        repetition = self._repetitions(period)

        def element(indices: Sequence[Any]) -> Any:
            j = indices[self.axis]
            forth = tirx.floormod(self.before + j, period) + repetition * period
            back = tirx.floormod(self.before - j, period) + repetition * period
            # The two ends have no second copy: the way back begins and ends beside them.
            inside = tirx.all(j > 0, j < self.extent - 1)
            copies = self._guarded(indices, forth) + self._guarded(indices, back, inside)
            return te.sum(copies, axis=repetition)

        return element

    def replicated(self) -> Any:
        """The fold of a replicated border: each end is added the whole border next to it."""
        # Each border is summed in a stage of its own: te.sum cannot stand inside an expression.
        borders = [(0, 0, self.before), (self.extent - 1, self.before + self.extent, self.after)]
        sums = [(end, self._sum(first, count)) for end, first, count in borders if count]

        def element(indices: Sequence[Any]) -> Any:
            total = self._read(indices, self.before + indices[self.axis])
            for end, border in sums:
                copies = border(*self._at(indices, 0))
                zero = tirx.const(0, str(copies.ty))
                total += tirx.if_then_else(indices[self.axis] == end, copies, zero)
            return total

        return element

    def _sum(self, first: Any, count: int) -> te.Tensor:
        """The sum of `count` elements of the axis from `first`, kept as an axis of extent 1."""
        copy = te.reduce_axis((0, count), name="copy")
        return te.compute(
            self._at(self.x.shape, 1),
            lambda *i: te.sum(self._read(i, first + copy), axis=copy),
            name="border",
        )

    def _repetitions(self, period: Any) -> Any:
        """The reduction axis over the periods that the padded axis touches, the last in part."""
        total = self.x.shape[self.axis]
        return te.reduce_axis((0, tirx.floordiv(total - 1, period) + 1), name="repetition")

    def _guarded(self, indices: Sequence[Any], position: Any, *conditions: Any) -> Any:
        """The element at a position of the axis; zero beyond it or if a condition fails."""
        value = self._read(indices, position)
        present = tirx.all(position < self.x.shape[self.axis], *conditions)
        return tirx.if_then_else(present, value, tirx.const(0, str(value.ty)))

    def _read(self, indices: Sequence[Any], position: Any) -> Any:
        return self.x(*self._at(indices, position))

    def _at(self, indices: Sequence[Any], position: Any) -> list[Any]:
        return [*indices[: self.axis], position, *indices[self.axis + 1 :]]


_FOLD_BORDER = define_op("fold_border", ["x"], _infer_type, _compute)


@legalization("relax.nn.pad")
def pad(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower padding so that a border may be longer than the axis.

    The stock form reflects once, and reads other elements where one reflection does not reach.
    """
    attrs = call.attrs
    widths = [int(width) for width in attrs.pad_width]
    mode = str(attrs.pad_mode)
    shape = list(call.args[0].ty.shape.values)
    check_border(shape, widths, mode)
    # Where a symbolic extent is 0 there is nothing to copy: no element outside may be read.
    may_be_empty = [
        extent
        for extent, before, after in zip(shape, widths[::2], widths[1::2], strict=True)
        if (before or after) and not isinstance(extent, tirx.IntImm)
    ]

    def constant(x: te.Tensor) -> te.Tensor:
        return topi.nn.pad(x, widths[::2], widths[1::2], attrs.pad_value)

    def copied(x: te.Tensor) -> te.Tensor:
        def element(*indices: Any) -> Any:
            value = x(
                *(
                    origin(i, before, extent, mode) if before or after else i
                    for i, before, after, extent in zip(
                        indices, widths[::2], widths[1::2], x.shape, strict=True
                    )
                )
            )
            if not may_be_empty:
                return value
            exists = tirx.all(*(extent > 0 for extent in may_be_empty))
            return tirx.if_then_else(exists, value, outside_value(str(x.dtype)))

        return te.compute(call.ty.shape.values, element, name="pad")

    expression = constant if mode == "constant" else copied
    return builder.call_te(expression, call.args[0], primfunc_name_hint="pad")


@layout_rule("relax.nn.pad")
@following
def pad_layout(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """The border has a width before and after each axis."""
    widths = site.attributes.pad_width
    pairs = [widths[2 * axis : 2 * axis + 2] for axis in order]
    return site.passed([x], order, pad_width=[width for pair in pairs for width in pair])
