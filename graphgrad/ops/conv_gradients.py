"""Tensor expressions of a convolution's two gradients, without a wasted multiply-add.

The data gradient of stride s is one sum for each remainder of the positions by s, over exactly the
taps that reach them, and a stage that interleaves the sums: the form that derived gradients have,
see `graphgrad.fallback.forms.phases`. A transposed convolution is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from math import gcd, prod
from typing import TYPE_CHECKING, Any

import tvm
from tvm import te, tirx

from ..fallback.forms.phases import label, merged
from ..fallback.kinds import Kind, marked
from .conv_expressions import (
    bordered,
    cast,
    extents_of,
    long,
    padded,
    permuted,
    reduction_axes,
    spatial_axes,
    total,
    wide_dtype,
)
from .tensor import Dimension, accumulator_dtype, same_dimension

if TYPE_CHECKING:
    from .conv import Layouts, Window

_VECTOR_WORTHY = 8
"""Input channels from which the weight gradient's innermost loop runs over them."""

_MOST_PHASES = 16
"""Sums that a data gradient is split into at most: each is a loop nest of its own to compile."""


def data_gradient(
    ct: te.Tensor,
    w: te.Tensor,
    shape: Sequence[Dimension],
    window: Window,
    layouts: tuple[str, str, str],
    dtype: str,
) -> te.Tensor:
    """x̄[n,c,h…] = Σ ȳ[n,k,p…] · w[k,c,r…] over h = p·stride + r·dilation − padding.

    Parameters
    ----------
    ct, w : te.Tensor
    shape : sequence
        Of the result, in its layout.
    window : Window
    layouts : (str, str, str)
        Of cotangent, weights and result: permutations of NCHW, OIHW and NCHW, or of other ranks.
    dtype : str
        Of the result.
    """
    spatial = spatial_axes(layouts[0])
    extents = dict(zip(layouts[2], shape, strict=True))
    kernel = extents_of(w, layouts[1], spatial)
    axes = {
        axis: _Axis(extents[axis], *of_axis)
        for axis, *of_axis in zip(
            spatial, kernel, window.strides, window.dilation, window.before, strict=True
        )
    }
    wide = wide_dtype(str(ct.dtype), dtype)
    gradient = _DataGradient(ct, w, extents, axes, window.groups, layouts, wide)
    fixed = all(axis.stride == 1 or isinstance(axis.kernel, int) for axis in axes.values())
    few = prod(window.strides) <= _MOST_PHASES
    return cast(gradient.by_phases() if fixed and few else gradient.at_once(), dtype)


def weight_gradient(
    x: te.Tensor, ct: te.Tensor, shape: Sequence[Dimension], window: Window, layouts: Layouts
) -> te.Tensor:
    """w̄[k,c,r…] = Σ ȳ[n,k,p…] · x[n,c,p·stride + r·dilation − padding,…].

    Summed in a form whose innermost axis is long: the input channels, or the filters where a group
    has few channels. Data with the channels last, and weights that end in one of the two, are in
    that form already. Otherwise the data are copied, and the small result is transposed.

    Parameters
    ----------
    x, ct : te.Tensor
    shape : sequence
        Of the result, in its layout.
    window : Window
    layouts : Layouts
    """
    spatial = spatial_axes(layouts.data)
    last = "N" + spatial + "C"
    extents = dict(zip(layouts.kernel, shape, strict=True))
    group_channels, group_filters = extents["I"], extents["O"] // window.groups
    batch, *out_extents = extents_of(ct, layouts.data, "N" + spatial)
    dtype = str(ct.dtype)
    wide = accumulator_dtype(dtype)
    order = layouts.kernel
    if layouts.data != last or order[-1] not in "OI":
        worthy = isinstance(group_channels, int) and group_channels >= _VECTOR_WORTHY
        order = spatial + ("OI" if worthy else "IO")
    x = padded(x, layouts.data, last, window)
    ct_layout = last if order[-1] == "O" else layouts.data
    ct = permuted(ct, layouts.data, ct_layout)
    n, *positions = reduction_axes([batch, *out_extents], "p")
    position = dict(zip(spatial, positions, strict=True))

    def product(*indices: Any) -> Any:
        at = dict(zip(order, indices, strict=True))
        k, c = at["O"], at["I"]
        channel = c if window.groups == 1 else k // group_filters * group_channels + c
        read = [
            position[axis] * stride + at[axis] * dilation
            for axis, stride, dilation in zip(spatial, window.strides, window.dilation, strict=True)
        ]
        data = x(n, *read, channel)
        cotangent = ct(*[{"N": n, "C": k, **position}[axis] for axis in ct_layout])
        return total(cotangent.astype(wide) * data.astype(wide), [n, *positions])

    shape = long(extents[axis] for axis in order)
    gradient = te.compute(shape, product, name="weight_gradient")
    return permuted(cast(gradient, dtype), order, layouts.kernel)


@dataclass(frozen=True)
class _Axis:
    """One spatial axis: the extents of data and kernel, and what the window says of it."""

    extent: Dimension
    kernel: Dimension
    stride: int
    dilation: int
    before: int

    @property
    def common(self) -> int:
        """The common divisor of stride and dilation: other positions have no taps."""
        return gcd(self.stride, self.dilation)

    @property
    def period(self) -> int:
        """How far two taps that reach the same position are apart at least."""
        return self.stride // self.common

    @property
    def inverse(self) -> int:
        """What the dilation is to be multiplied by for 1, modulo the period."""
        return pow(self.dilation // self.common, -1, self.period)

    @property
    def move(self) -> int:
        """How far apart two such taps take the cotangent."""
        return self.dilation // self.common

    @property
    def end(self) -> Dimension:
        """One more than the last position of the cotangent that any of the data takes."""
        return _simple((self.extent - 1 + self.before) // self.stride + 1)

    def quotients(self, digit: int) -> Dimension:
        """Return how many positions have a remainder by the stride."""
        return _ceiling(self.extent - digit, self.stride)

    def phases(self) -> dict[int, _Phase]:
        """Return the taps of each remainder that has any.

        They are the solutions r of r · dilation ≡ remainder + padding (mod stride).
        """
        found = {}
        for digit in range(self.stride):
            target = digit + self.before
            first = target // self.common * self.inverse % self.period
            count = _ceiling(self.kernel - first, self.period)
            empty = same_dimension(count, 0) or same_dimension(self.quotients(digit), 0)
            if target % self.common == 0 and not empty:
                offset = (target - first * self.dilation) // self.stride
                found[digit] = _Phase(self, count, first, offset)
        return found


@dataclass(frozen=True)
class _Phase:
    """The taps that reach the positions of one remainder along an axis.

    The tap `first` + u · period, with u < count, takes the cotangent at the quotient of the
    position by the stride, + `offset` − u · move. Sums run backwards over u, so that they read it
    forwards, as convolutions read their data.
    """

    axis: _Axis
    count: Dimension
    first: int
    offset: int

    @property
    def lowest(self) -> Dimension:
        """Where the quotient 0 takes the cotangent first."""
        return self.offset - (self.count - 1) * self.axis.move

    def tap(self, quotient: Any, t: Any) -> Any:
        """Return the tap that the variable of a sum stands for."""
        return self.first + (self.count - 1 - t) * self.axis.period

    def place(self, quotient: Any, t: Any, shift: Dimension) -> Any:
        """Return where it takes the cotangent, behind so many zeros."""
        return quotient + t * self.axis.move + (self.lowest + shift)

    def condition(self, quotient: Any) -> list[Any]:
        """Return nothing: all of these positions have these taps."""
        return []


@dataclass(frozen=True)
class _AllPhases:
    """The taps of all positions along an axis, found by arithmetic for each position.

    The kernel ends in zeros up to a multiple of the period, so that all have as many.
    """

    axis: _Axis

    @property
    def count(self) -> Dimension:
        """The number of taps of a position."""
        return _ceiling(self.axis.kernel, self.axis.period)

    @property
    def lowest(self) -> Dimension:
        """A bound of where any position takes the cotangent."""
        axis = self.axis
        least = (axis.before - (axis.period - 1) * axis.dilation) // axis.stride
        return least - (self.count - 1) * axis.move

    def first(self, position: Any) -> Any:
        """Return the first tap of a position."""
        axis = self.axis
        return (position + axis.before) // axis.common * axis.inverse % axis.period

    def tap(self, position: Any, t: Any) -> Any:
        """Return the tap that the variable of a sum stands for."""
        return self.first(position) + (self.count - 1 - t) * self.axis.period

    def place(self, position: Any, t: Any, shift: Dimension) -> Any:
        """Return where it takes the cotangent, behind so many zeros."""
        axis = self.axis
        reached = (position + axis.before - self.first(position) * axis.dilation) // axis.stride
        return reached + t * axis.move + (shift - (self.count - 1) * axis.move)

    def condition(self, position: Any) -> list[Any]:
        """Return the condition under which a position has taps, if there is one."""
        axis = self.axis
        return [(position + axis.before) % axis.common == 0] if axis.common > 1 else []


@dataclass(frozen=True)
class _DataGradient:
    """The sums of a data gradient.

    Attributes
    ----------
    ct, w : te.Tensor
    extents : dict
        Of the result, by axis.
    axes : dict
        The spatial ones, by their letters.
    groups : int
    layouts : (str, str, str)
        Of ct, w and the result.
    dtype : str
        To sum in.
    """

    ct: te.Tensor
    w: te.Tensor
    extents: dict[str, Dimension]
    axes: dict[str, _Axis]
    groups: int
    layouts: tuple[str, str, str]
    dtype: str

    def by_phases(self) -> te.Tensor:
        """Return a sum for each combination of remainders, interleaved."""
        phases = {axis: of_axis.phases() for axis, of_axis in self.axes.items()}
        shifts = {axis: _shift(found.values()) for axis, found in phases.items()}
        ct = self._bordered(shifts)
        order = self.layouts[2]
        moduli = [self.axes[axis].stride if axis in self.axes else 1 for axis in order]
        stages = {}
        for digits in combinations(*(phases.get(axis, (0,)) for axis in order)):
            of_axis = dict(zip(order, digits, strict=True))
            taps = {axis: found[of_axis[axis]] for axis, found in phases.items()}
            quotients = {axis: a.quotients(of_axis[axis]) for axis, a in self.axes.items()}
            name, attributes = "data_gradient", None
            if max(moduli) > 1:
                name = f"{name}_{label(digits)}"
                attributes = marked(Kind.PHASE, moduli, digits)
            shape = long(quotients.get(axis, self.extents[axis]) for axis in order)
            element = self._element(ct, self.w, taps, shifts)
            stages[digits] = te.compute(shape, element, name=name, attrs=attributes)
        if max(moduli) == 1 and stages:
            return next(iter(stages.values()))
        whole = long(self.extents[axis] for axis in order)
        return merged(stages, whole, moduli, self.dtype, "interleaved")

    def at_once(self) -> te.Tensor:
        """Return one sum whose taps are computed from the position: for many remainders.

        It multiplies by some zeros, where the kernel is no multiple of the stride.
        """
        taps = {axis: _AllPhases(of_axis) for axis, of_axis in self.axes.items()}
        shifts = {axis: _shift([of_axis]) for axis, of_axis in taps.items()}
        kernel = {axis: of_axis.count * of_axis.axis.period for axis, of_axis in taps.items()}
        w = bordered(self.w, self.layouts[1], self.layouts[1], {}, kernel)
        element = self._element(self._bordered(shifts), w, taps, shifts)
        shape = long(self.extents[axis] for axis in self.layouts[2])
        return te.compute(shape, element, name="data_gradient")

    def _element(
        self,
        ct: te.Tensor,
        w: te.Tensor,
        taps: Mapping[str, _Phase | _AllPhases],
        shifts: Mapping[str, Dimension],
    ) -> Callable[..., Any]:
        """Return the function that sums one element, from its indices."""
        ct_layout, kernel_layout, order = self.layouts
        (group_channels,) = extents_of(w, kernel_layout, "I")
        (filters,) = extents_of(ct, ct_layout, "C")
        group_filters = filters // self.groups
        (k,) = reduction_axes([group_filters], "k")
        variables = reduction_axes([taps[axis].count for axis in taps], "r")
        t = dict(zip(taps, variables, strict=True))
        summed = [k if axis == "C" else t[axis] for axis in ct_layout if axis != "N"]

        def element(*indices: Any) -> Any:
            at = dict(zip(order, indices, strict=True))
            channel, k_of_all = at["C"], k
            if self.groups > 1:
                k_of_all = channel // group_channels * group_filters + k
                channel = channel % group_channels
            read = {"N": at["N"], "C": k_of_all}
            weight = {"O": k_of_all, "I": channel}
            conditions = []
            for axis, of_axis in taps.items():
                read[axis] = of_axis.place(at[axis], t[axis], shifts[axis])
                weight[axis] = of_axis.tap(at[axis], t[axis])
                conditions += of_axis.condition(at[axis])
            left = ct(*[read[axis] for axis in ct_layout])
            if conditions:
                left = tirx.if_then_else(tirx.all(*conditions), left, tirx.const(0, ct.dtype))
            right = w(*[weight[axis] for axis in kernel_layout])
            return total(left.astype(self.dtype) * right.astype(self.dtype), summed)

        return element

    def _bordered(self, shifts: Mapping[str, Dimension]) -> te.Tensor:
        """Return the cotangent with zeros where a sum would read outside of it."""
        layout = self.layouts[0]
        given = dict(zip(layout, extents_of(self.ct, layout, layout), strict=True))
        extents = {
            axis: of_axis.end + shifts[axis]
            for axis, of_axis in self.axes.items()
            if not (same_dimension(shifts[axis], 0) and _reaches(given[axis], of_axis.end))
        }
        return bordered(self.ct, layout, layout, shifts, extents)


def _shift(taps: Iterable[_Phase | _AllPhases]) -> Dimension:
    """Return how many zeros are missing before a cotangent."""
    shift: Dimension = 0
    for of_axis in taps:
        needed = -of_axis.lowest
        both = isinstance(shift, int) and isinstance(needed, int)
        shift = max(shift, needed) if both else tirx.max(shift, needed)
    return shift


def _reaches(extent: Dimension, end: Dimension) -> bool:
    """Return whether an extent is known to be as long as needed."""
    if isinstance(extent, int) and isinstance(end, int):
        return extent >= end
    return same_dimension(extent, end)


def _ceiling(value: Dimension, divisor: int) -> Dimension:
    """Return a quotient, rounded up."""
    return _simple((value + (divisor - 1)) // divisor)


def _simple(value: Dimension) -> Dimension:
    return value if isinstance(value, int) else tvm.sym.Analyzer().simplify(value)
