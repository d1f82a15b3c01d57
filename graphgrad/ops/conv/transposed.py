"""The sum of a convolution's data gradient, which a transposed convolution is, too.

That of stride s is one sum for each remainder of the positions by s, over exactly the taps that
reach them, and a stage that interleaves the sums: the form that derived gradients have, see
`graphgrad.fallback.forms.residues`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from math import gcd, prod
from typing import Any

import tvm
from tvm import te, tirx

from ...fallback.forms.residues import label, merged
from ...fallback.kinds import Kind, marked
from ...ir.tensor import Dimension, same_dimension
from ..elementwise import cast
from .stages import bordered, extents_of, long, reduction_axes, spatial_axes, total, wide_dtype
from .window import Window

_MAX_PHASES = 16
"""The residue classes that a data gradient is split into at most: each is a loop nest to compile.

With more of them, one sum computes the taps of every position (`_DataGradient.in_one_sum`).
"""


def data_gradient(
    ct: te.Tensor,
    w: te.Tensor,
    shape: Sequence[Dimension],
    window: Window,
    layouts: tuple[str, str, str],
    dtype: str,
) -> te.Tensor:
    """The sum x̄[n,c,h…] = Σ ȳ[n,k,p…] · w[k,c,r…] over h = p·stride + r·dilation − padding.

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
        axis: _Axis(extents[axis], *numbers)
        for axis, *numbers in zip(
            spatial, kernel, window.strides, window.dilation, window.before, strict=True
        )
    }
    accumulator = wide_dtype(str(ct.dtype), dtype)
    gradient = _DataGradient(ct, w, extents, axes, window.groups, layouts, accumulator)
    # Which remainders have taps at all must be known, and with a stride that takes the kernel's
    # extent: a class that turned out to be empty would be a sum that TVM leaves unwritten.
    classes_are_static = all(
        axis.stride == 1 or isinstance(axis.kernel, int) for axis in axes.values()
    )
    classes_are_few = prod(window.strides) <= _MAX_PHASES
    return cast(
        gradient.by_residues() if classes_are_static and classes_are_few else gradient.in_one_sum(),
        dtype,
    )


@dataclass(frozen=True)
class _Axis:
    """One spatial axis of a data gradient: extents of data and kernel, and the window's numbers.

    Data position h reads the cotangent at p through tap r where
    h + before = p · stride + r · dilation. So the taps of h solve
    r · dilation ≡ h + before (mod stride): none unless `common` divides h + before, and otherwise
    every `period`-th tap.
    """

    extent: Dimension
    kernel: Dimension
    stride: int
    dilation: int
    before: int

    @property
    def common(self) -> int:
        """The greatest common divisor of stride and dilation.

        Positions h have no taps unless it divides h + before.
        """
        return gcd(self.stride, self.dilation)

    @property
    def period(self) -> int:
        """The least distance of two taps that reach the same position."""
        return self.stride // self.common

    @property
    def inverse(self) -> int:
        """The inverse of dilation / common modulo the period, which exists: they are coprime."""
        return pow(self.dilation // self.common, -1, self.period)

    @property
    def move(self) -> int:
        """The distance at which two taps that are a period apart read the cotangent."""
        return self.dilation // self.common

    @property
    def end(self) -> Dimension:
        """One more than the last position of the cotangent that any position of the data reads."""
        return _simplify((self.extent - 1 + self.before) // self.stride + 1)

    def quotients(self, residue: int) -> Dimension:
        """The number of positions whose remainder by the stride is `residue`."""
        return _ceiling(self.extent - residue, self.stride)

    def residue_classes(self) -> dict[int, _ResidueClass]:
        """The taps of each remainder by the stride; remainders without any are left out.

        They are the solutions r of r · dilation ≡ remainder + padding (mod stride).
        """
        class_of_residue = {}
        for residue in range(self.stride):
            target = residue + self.before
            first = target // self.common * self.inverse % self.period
            count = _ceiling(self.kernel - first, self.period)
            empty = same_dimension(count, 0) or same_dimension(self.quotients(residue), 0)
            if target % self.common == 0 and not empty:
                offset = (target - first * self.dilation) // self.stride
                # Exact, because first · dilation ≡ target modulo the stride.
                class_of_residue[residue] = _ResidueClass(self, count, first, offset)
        return class_of_residue


@dataclass(frozen=True)
class _ResidueClass:
    """The taps that reach the positions of one residue class along an axis.

    For the position quotient · stride + residue, the tap `first` + u · period, with u < count,
    reads the cotangent at quotient + `offset` − u · move. Sums run over t = count − 1 − u, so that
    they read the cotangent forwards, as convolutions read their data.
    """

    axis: _Axis
    count: Dimension
    first: int
    offset: int

    @property
    def lowest(self) -> Dimension:
        """The least position of the cotangent that the quotient 0 reads."""
        return self.offset - (self.count - 1) * self.axis.move

    def tap(self, quotient: Any, t: Any) -> Any:
        """The tap of the term `t` of a sum."""
        return self.first + (self.count - 1 - t) * self.axis.period

    def ct_index(self, quotient: Any, t: Any, shift: Dimension) -> Any:
        """The index at which the term `t` reads the cotangent behind `shift` zeros."""
        return quotient + t * self.axis.move + (self.lowest + shift)

    def condition(self, quotient: Any) -> list[Any]:
        """The conditions for a position to have these taps: none, as all of the class do."""
        return []


@dataclass(frozen=True)
class _AllResidues:
    """The taps of all positions along an axis, computed from each position.

    The kernel is padded with zeros to a multiple of the period, so that all positions have equally
    many taps.
    """

    axis: _Axis

    @property
    def count(self) -> Dimension:
        """The number of taps of a position."""
        return _ceiling(self.axis.kernel, self.axis.period)

    @property
    def lowest(self) -> Dimension:
        """A lower bound of the positions of the cotangent that any position reads."""
        axis = self.axis
        # That of position 0, if its first tap were the greatest possible one, period − 1.
        least = (axis.before - (axis.period - 1) * axis.dilation) // axis.stride
        return least - (self.count - 1) * axis.move

    def first(self, position: Any) -> Any:
        """The first tap of a position."""
        axis = self.axis
        return (position + axis.before) // axis.common * axis.inverse % axis.period

    def tap(self, position: Any, t: Any) -> Any:
        """The tap of the term `t` of a position's sum."""
        return self.first(position) + (self.count - 1 - t) * self.axis.period

    def ct_index(self, position: Any, t: Any, shift: Dimension) -> Any:
        """The index at which the term `t` reads the cotangent behind `shift` zeros."""
        axis = self.axis
        reached = (position + axis.before - self.first(position) * axis.dilation) // axis.stride
        return reached + t * axis.move + (shift - (self.count - 1) * axis.move)

    def condition(self, position: Any) -> list[Any]:
        """The conditions for a position to have taps; none where all positions have."""
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

    def by_residues(self) -> te.Tensor:
        """The gradient as a sum for each combination of remainders, interleaved by a last stage."""
        classes = {letter: axis.residue_classes() for letter, axis in self.axes.items()}
        shifts = {letter: _shift(each.values()) for letter, each in classes.items()}
        ct = self._add_border(shifts)
        order = self.layouts[2]
        moduli = [self.axes[axis].stride if axis in self.axes else 1 for axis in order]
        stages = {}
        for residues in combinations(*(classes.get(axis, (0,)) for axis in order)):
            residue_of = dict(zip(order, residues, strict=True))
            taps = {letter: each[residue_of[letter]] for letter, each in classes.items()}
            quotients = {
                letter: axis.quotients(residue_of[letter]) for letter, axis in self.axes.items()
            }
            name, attributes = "data_gradient", None
            if max(moduli) > 1:
                name = f"{name}_{label(residues)}"
                attributes = marked(Kind.RESIDUE_CLASS)
            shape = long(quotients.get(axis, self.extents[axis]) for axis in order)
            element = self._element(ct, self.w, taps, shifts)
            stages[residues] = te.compute(shape, element, name=name, attrs=attributes)
        # Without strides there is one class, which is the gradient itself. `stages` is empty if no
        # position has a tap; `merged` then makes zeros.
        if max(moduli) == 1 and stages:
            return next(iter(stages.values()))
        shape_of_all = long(self.extents[axis] for axis in order)
        return merged(stages, shape_of_all, moduli, self.dtype, "interleaved")

    def in_one_sum(self) -> te.Tensor:
        """The gradient as one sum whose taps are computed from the position: for many remainders.

        It multiplies by some zeros, where the kernel is no multiple of the stride.
        """
        taps = {letter: _AllResidues(axis) for letter, axis in self.axes.items()}
        shifts = {letter: _shift([of_axis]) for letter, of_axis in taps.items()}
        kernel = {letter: of_axis.count * of_axis.axis.period for letter, of_axis in taps.items()}
        w = bordered(self.w, self.layouts[1], self.layouts[1], {}, kernel)
        element = self._element(self._add_border(shifts), w, taps, shifts)
        shape = long(self.extents[axis] for axis in self.layouts[2])
        return te.compute(shape, element, name="data_gradient")

    def _element(
        self,
        ct: te.Tensor,
        w: te.Tensor,
        taps: Mapping[str, _ResidueClass | _AllResidues],
        shifts: Mapping[str, Dimension],
    ) -> Callable[..., Any]:
        """The function that sums one element, from its indices."""
        ct_layout, kernel_layout, order = self.layouts
        (group_channels,) = extents_of(w, kernel_layout, "I")
        (filters,) = extents_of(ct, ct_layout, "C")
        group_filters = filters // self.groups
        (k,) = reduction_axes([group_filters], "k")
        variables = reduction_axes([taps[axis].count for axis in taps], "r")
        term_of = dict(zip(taps, variables, strict=True))
        summed = [k if axis == "C" else term_of[axis] for axis in ct_layout if axis != "N"]

        def element(*indices: Any) -> Any:
            index_of = dict(zip(order, indices, strict=True))
            channel, k_of_all = index_of["C"], k
            if self.groups > 1:
                k_of_all = channel // group_channels * group_filters + k
                channel = channel % group_channels
            ct_index = {"N": index_of["N"], "C": k_of_all}
            weight_index = {"O": k_of_all, "I": channel}
            conditions = []
            for axis, axis_taps in taps.items():
                ct_index[axis] = axis_taps.ct_index(index_of[axis], term_of[axis], shifts[axis])
                weight_index[axis] = axis_taps.tap(index_of[axis], term_of[axis])
                conditions += axis_taps.condition(index_of[axis])
            left = ct(*[ct_index[axis] for axis in ct_layout])
            if conditions:
                left = tirx.if_then_else(tirx.all(*conditions), left, tirx.const(0, ct.dtype))
            right = w(*[weight_index[axis] for axis in kernel_layout])
            return total(left.astype(self.dtype) * right.astype(self.dtype), summed)

        return element

    def _add_border(self, shifts: Mapping[str, Dimension]) -> te.Tensor:
        """The cotangent with zeros where a sum would read outside of it."""
        # Along an axis with nothing missing at either end the cotangent stays as it is.
        layout = self.layouts[0]
        extent_of = dict(zip(layout, extents_of(self.ct, layout, layout), strict=True))
        extents = {
            axis: of_axis.end + shifts[axis]
            for axis, of_axis in self.axes.items()
            if not (same_dimension(shifts[axis], 0) and _reaches(extent_of[axis], of_axis.end))
        }
        return bordered(self.ct, layout, layout, shifts, extents)


def _shift(taps: Iterable[_ResidueClass | _AllResidues]) -> Dimension:
    """The number of zeros that a cotangent needs in front, for any of these taps to read it."""
    shift: Dimension = 0
    for axis_taps in taps:
        needed = -axis_taps.lowest
        are_static = isinstance(shift, int) and isinstance(needed, int)
        shift = max(shift, needed) if are_static else tirx.max(shift, needed)
    return shift


def _reaches(extent: Dimension, end: Dimension) -> bool:
    """Whether an extent is provably at least `end`."""
    if isinstance(extent, int) and isinstance(end, int):
        return extent >= end
    return same_dimension(extent, end)


def _ceiling(value: Dimension, divisor: int) -> Dimension:
    """The quotient of a value and a positive divisor, rounded up."""
    return _simplify((value + (divisor - 1)) // divisor)


def _simplify(value: Dimension) -> Dimension:
    return value if isinstance(value, int) else tvm.sym.Analyzer().simplify(value)
