"""Convolutions in any number of spatial dimensions, and their two gradients as ops of our own.

With ``y = conv(x, w)`` the three maps ``conv``, `conv_data_gradient` and `conv_weight_gradient` are
bilinear and closed under differentiation: each one's gradients are the other two. So a rule for
each is one line, and derivatives exist to any order. A transposed convolution is a data gradient.

Data are N, C and the spatial axes, weights O, I (C / groups) and these, each in the order of a
layout. The cotangent of the output has the layout of the data. Derivation of both sums: Dumoulin
and Visin, *A guide to convolution arithmetic for deep learning* (2016), sections 4.3 to 4.6, with
dilation and groups added.

Each tensor expression is a sum of products of two affine reads, the form that lowering schedules as
a contraction; what would spoil it (padding, another order of the axes) is a stage before. Axes are
named by the letters of layouts, so that one expression serves all layouts in any number of spatial
dimensions. Half precision adds up in float32.

The data gradient of stride s is one sum for each remainder of the positions by s, over exactly the
taps that reach them, and a stage that interleaves the sums: the form that derived gradients have,
see `graphgrad.fallback.forms.residues`. A transposed convolution is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from math import gcd, prod
from typing import Any

import tvm
from tvm import relax, te, tirx

from ..errors import ArgumentError
from ..fallback.forms.residues import label, merged
from ..fallback.kinds import Kind, marked
from ..ir.attributes import Attributes
from ..ir.tensor import (
    Dimension,
    Tensor,
    accumulator_dtype,
    bits,
    dimension_text,
    is_float,
    same_dimension,
    type_shape,
)
from ..layout import orders
from ..layout.rule import LaidOut, Site, layout_rule
from .define import call_op, define_op, in_given_shape
from .elementwise import cast
from .legalize import legalization

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
"""The spatial axes of a layout by their number, in the order of a window's numbers."""


@dataclass(frozen=True)
class Window:
    """The window of a convolution: one number per spatial axis, padding before and after.

    Attributes
    ----------
    strides, dilation : tuple of int
        One per spatial axis.
    padding : tuple of int
        Before each spatial axis, then after each: top, left, bottom, right.
    groups : int
    """

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @staticmethod
    def of(attributes: Any) -> Window:
        """Read the window from the attributes of a convolution or of one of its gradients."""
        return Window(
            tuple(int(v) for v in attributes["strides"]),
            tuple(int(v) for v in attributes["padding"]),
            tuple(int(v) for v in attributes["dilation"]),
            int(attributes["groups"]),
        )

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.strides)

    @property
    def before(self) -> tuple[int, ...]:
        """The padding before each spatial axis."""
        return self.padding[: self.rank]

    @property
    def after(self) -> tuple[int, ...]:
        """The padding after each spatial axis."""
        return self.padding[self.rank :]

    def reach(self, kernel: Sequence[Dimension]) -> list[Dimension]:
        """The distance from a window's first tap to its last along each spatial axis."""
        return [(k - 1) * d for k, d in zip(kernel, self.dilation, strict=True)]

    def attributes(self) -> dict[str, Any]:
        """The window as attributes of a call."""
        return {
            "strides": list(self.strides),
            "padding": list(self.padding),
            "dilation": list(self.dilation),
            "groups": self.groups,
        }


@dataclass(frozen=True)
class Layouts:
    """The orders of the axes: of the data and of the output's cotangent, and of the weights.

    Attributes
    ----------
    data : str
        A permutation of NCHW, or of NCW or NCDHW.
    kernel : str
        A permutation of OIHW, or of OIW or OIDHW.
    """

    data: str
    kernel: str

    @staticmethod
    def standard(rank: int) -> Layouts:
        """The layouts with the channels first."""
        return Layouts("NC" + SPATIAL[rank], "OI" + SPATIAL[rank])

    @staticmethod
    def of(attributes: Any, rank: int) -> Layouts:
        """Read the layouts from the attributes of a convolution or of one of its gradients.

        A gradient without these attributes has the channels first.

        Raises
        ------
        ArgumentError
            A layout has other axes than the standard one, such as the blocked NCHW4c.
        """
        standard = Layouts.standard(rank)
        return Layouts(
            _layout(attributes, "data_layout", standard.data),
            _layout(attributes, "kernel_layout", standard.kernel),
        )

    @property
    def transposed(self) -> Layouts:
        """The layouts in which a transposed convolution's weights are those of its convolution."""
        return Layouts(self.data, self.kernel.translate({ord("O"): "I", ord("I"): "O"}))

    def spatial(self, of_data: Sequence[Any]) -> list[Any]:
        """The entries of the spatial axes among one entry for each axis of the data.

        They come in the order of a window's numbers, whatever the layout is.
        """
        entry_of_axis = dict(zip(self.data, of_data, strict=True))
        return [entry_of_axis[axis] for axis in SPATIAL[len(of_data) - 2]]

    def attributes(self) -> dict[str, Any]:
        """The layouts as attributes of a call."""
        return {"data_layout": self.data, "kernel_layout": self.kernel}


def conv(x: Tensor, w: Tensor, window: Window, layouts: Layouts | None = None) -> Tensor:
    """The convolution of data with weights, in the given layouts or with the channels first."""
    layouts = layouts or Layouts.standard(window.rank)
    function = getattr(relax.op.nn, f"conv{window.rank}d")
    call = function(x.expr, w.expr, **window.attributes(), **layouts.attributes())
    return x.emitter.emit(call)


def conv_data_gradient(
    ct: Tensor,
    w: Tensor,
    shape: Sequence[Dimension],
    window: Window,
    layouts: Layouts | None = None,
) -> Tensor:
    """The cotangent x̄ of the data of ``y = conv(x, w)``.

    Parameters
    ----------
    ct : Tensor
        Cotangent of y; positions at its far ends may be missing, and count as zeros.
    w : Tensor
        Weights.
    shape : sequence
        The shape of x.
    window : Window
    layouts : Layouts, optional
        Of x, ct and w; with the channels first by default.
    """
    arguments = [ct.expr, w.expr, relax.ShapeExpr(list(shape))]
    return _emitted(_DATA_GRADIENT, ct, arguments, window, layouts)


def conv_weight_gradient(
    x: Tensor,
    ct: Tensor,
    shape: Sequence[Dimension],
    window: Window,
    layouts: Layouts | None = None,
) -> Tensor:
    """The cotangent w̄ of the weights of ``y = conv(x, w)``.

    Parameters
    ----------
    x : Tensor
        Data.
    ct : Tensor
        Cotangent of y; positions at its far ends may be missing, and count as zeros.
    shape : sequence
        The shape of w.
    window : Window
    layouts : Layouts, optional
        Of x, ct and w; with the channels first by default.
    """
    arguments = [x.expr, ct.expr, relax.ShapeExpr(list(shape))]
    return _emitted(_WEIGHT_GRADIENT, ct, arguments, window, layouts)


def check_output(op: str, extents: Sequence[Dimension]) -> None:
    """Refuse a convolution without outputs.

    Parameters
    ----------
    op : str
        The name of the op, for the message.
    extents : sequence
        Of the output's spatial axes.

    Raises
    ------
    ArgumentError
        An extent is not positive.
    """
    if any(isinstance(extent, int) and extent <= 0 for extent in extents):
        text = ", ".join(map(dimension_text, extents))
        raise ArgumentError(
            f"{op}: its output would have the spatial extents ({text}); they have to be positive: "
            "the dilated kernel is larger than the padded input, or a transposed convolution "
            "crops all it has. Give a larger input, or change kernel and padding"
        )


def check_layout(layout: str, standard: str) -> None:
    """Refuse a layout of other axes than the standard one's.

    Raises
    ------
    ArgumentError
        It is no permutation of `standard`, such as the blocked NCHW4c.
    """
    if sorted(layout) != sorted(standard):
        raise ArgumentError(
            f"a convolution has the layout {layout}: layouts are served that permute the axes "
            f"{standard}; convert the op's layout first"
        )


def _layout(attributes: Any, name: str, standard: str) -> str:
    try:
        layout = str(attributes[name])
    except KeyError:
        return standard
    check_layout(layout, standard)
    return layout


def convolution(
    x: te.Tensor,
    w: te.Tensor,
    shape: Sequence[Dimension],
    window: Window,
    layouts: tuple[str, str, str],
    dtype: str,
) -> te.Tensor:
    """The sum y[n,k,p…] = Σ x[n,c,p·stride + r·dilation − padding,…] · w[k,c,r…].

    Parameters
    ----------
    x, w : te.Tensor
    shape : sequence
        Of the result, in its layout.
    window : Window
    layouts : (str, str, str)
        Of data, weights and result: permutations of NCHW, OIHW and NCHW, or of other ranks.
    dtype : str
        Of the result.
    """
    data_layout, kernel_layout, out_layout = layouts
    spatial = spatial_axes(data_layout)
    x = padded(x, data_layout, data_layout, window)
    group_channels, *kernel = extents_of(w, kernel_layout, "I" + spatial)
    group_filters = shape[out_layout.index("C")] // window.groups
    accumulator = wide_dtype(str(x.dtype), dtype)
    taps = dict(zip(spatial, reduction_axes(kernel, "r"), strict=True))
    (input_channel,) = reduction_axes([group_channels], "c")
    # The channels are summed in the place that they have in the data.
    order = [input_channel if axis == "C" else taps[axis] for axis in data_layout if axis != "N"]

    def product(*indices: Any) -> Any:
        index_of = dict(zip(out_layout, indices, strict=True))
        k = index_of["C"]
        # A filter reads the channels of its own group only.
        channel = (
            input_channel
            if window.groups == 1
            else k // group_filters * group_channels + input_channel
        )
        data_index = {"N": index_of["N"], "C": channel}
        for axis, stride, dilation in zip(spatial, window.strides, window.dilation, strict=True):
            data_index[axis] = index_of[axis] * stride + taps[axis] * dilation
        data = x(*[data_index[axis] for axis in data_layout])
        weight = w(*[{"O": k, "I": input_channel, **taps}[axis] for axis in kernel_layout])
        return total(data.astype(accumulator) * weight.astype(accumulator), order)

    return cast(te.compute(long(shape), product, name="convolution"), dtype)


def permuted(x: te.Tensor, source: str, target: str) -> te.Tensor:
    """A tensor of one layout in another."""
    if source == target:
        return x
    return te.compute(
        long(extents_of(x, source, target)),
        lambda *i: x(*[i[target.index(axis)] for axis in source]),
        name="permuted",
    )


def padded(x: te.Tensor, source: str, target: str, window: Window) -> te.Tensor:
    """Data of one layout in another, with the padding of a window."""
    spatial = spatial_axes(source)
    before = dict(zip(spatial, window.before, strict=True))
    extents = {
        axis: extent + low + high
        for axis, extent, low, high in zip(
            spatial, extents_of(x, source, spatial), window.before, window.after, strict=True
        )
    }
    return bordered(x, source, target, before, extents)


def bordered(
    x: te.Tensor,
    source: str,
    target: str,
    before: Mapping[str, Dimension],
    extents: Mapping[str, Dimension],
    fill: Any = None,
) -> te.Tensor:
    """A tensor of one layout in another, inside a border.

    Parameters
    ----------
    x : te.Tensor
    source, target : str
        Its layout, and that of the result.
    before : mapping
        From an axis to the length of the border before the first element.
    extents : mapping
        From an axis to its extent in the result; what is beyond it is left out.
    fill : expression, optional
        What the border holds; by default zeros.
    """
    fill = tirx.const(0, str(x.dtype)) if fill is None else fill
    extent_of = dict(zip(source, extents_of(x, source, source), strict=True))
    first = {axis: before.get(axis, 0) for axis in source}
    result_extent_of = {axis: extents.get(axis, extent_of[axis]) for axis in source}
    # The axes that get a border or lose elements: only these need a guard.
    changed = [
        axis
        for axis in source
        if not (
            same_dimension(first[axis], 0)
            and same_dimension(result_extent_of[axis], extent_of[axis])
        )
    ]
    if not changed:
        return permuted(x, source, target)

    def element(*indices: Any) -> Any:
        index_of = dict(zip(target, indices, strict=True))
        source_index = {axis: index_of[axis] - first[axis] for axis in source}
        inside = [
            tirx.all(source_index[axis] >= 0, source_index[axis] < extent_of[axis])
            for axis in changed
        ]
        value = x(*[source_index[axis] for axis in source])
        # No Select, which would read outside of the tensor.
        return tirx.if_then_else(tirx.all(*inside), value, fill)

    return te.compute(long([result_extent_of[axis] for axis in target]), element, name="padded")


def spatial_axes(layout: str) -> str:
    """The spatial axes of a layout, in the order of a window's numbers."""
    return "".join(axis for axis in "DHW" if axis in layout)


def extents_of(x: te.Tensor, layout: str, axes: str) -> list[Dimension]:
    """The extents of some axes of a tensor: ints, and expressions where symbolic."""
    extents = [x.shape[layout.index(axis)] for axis in axes]
    return [int(e) if isinstance(e, tirx.IntImm) else e for e in extents]


def long(extents: Iterable[Dimension]) -> tuple[Any, ...]:
    """Extents as int64, the dtype of symbolic ones: all indices of a kernel have one dtype."""
    return tuple(tirx.IntImm("int64", e) if isinstance(e, int) else e for e in extents)


def reduction_axes(extents: Sequence[Dimension], name: str) -> list[Any]:
    """A reduction axis for each extent, and a plain zero as index for an extent of 1."""
    zero = tirx.IntImm("int64", 0)
    return [
        zero
        if isinstance(extent, tirx.IntImm) and int(extent) == 1
        else te.reduce_axis((zero, extent), f"{name}{i}")
        for i, extent in enumerate(long(extents))
    ]


def total(term: Any, axes: Sequence[Any]) -> Any:
    """The sum of a term over axes of `reduction_axes`, of which the plain zeros are ignored.

    A sum over an empty axis is a plain zero: TVM would leave its memory unwritten.
    """
    summed = [axis for axis in axes if isinstance(axis, tirx.IterVar)]
    extents = [axis.dom.extent for axis in summed]
    if any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in extents):
        return tirx.const(0, term.ty.dtype)
    return te.sum(term, axis=summed) if summed else term


def wide_dtype(source: str, result: str) -> str:
    """The dtype to sum in: the wider of operands and result, and at least float32 for floats."""
    # Between an integer and a float width says nothing: the result's dtype decides.
    if is_float(source) != is_float(result):
        return accumulator_dtype(result)
    return max(accumulator_dtype(source), accumulator_dtype(result), key=bits)


_MIN_VECTOR_CHANNELS = 8
"""Input channels from which the weight gradient's innermost loop runs over them."""

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


def weight_gradient(
    x: te.Tensor, ct: te.Tensor, shape: Sequence[Dimension], window: Window, layouts: Layouts
) -> te.Tensor:
    """The sum w̄[k,c,r…] = Σ ȳ[n,k,p…] · x[n,c,p·stride + r·dilation − padding,…].

    It is computed in an order of axes whose innermost one is long: the input channels, or the
    filters where a group has few channels. Data with the channels last, and weights that end in one
    of the two, have such an order already. Otherwise the data are copied with the channels last,
    and the small result is transposed.

    Parameters
    ----------
    x, ct : te.Tensor
    shape : sequence
        Of the result, in its layout.
    window : Window
    layouts : Layouts
    """
    spatial = spatial_axes(layouts.data)
    channels_last = "N" + spatial + "C"
    extents = dict(zip(layouts.kernel, shape, strict=True))
    group_channels, group_filters = extents["I"], extents["O"] // window.groups
    batch, *out_extents = extents_of(ct, layouts.data, "N" + spatial)
    dtype = str(ct.dtype)
    accumulator = accumulator_dtype(dtype)
    order = layouts.kernel
    if layouts.data != channels_last or order[-1] not in "OI":
        fills_vector = isinstance(group_channels, int) and group_channels >= _MIN_VECTOR_CHANNELS
        order = spatial + ("OI" if fills_vector else "IO")
    x = padded(x, layouts.data, channels_last, window)
    # If the filters are innermost, the cotangent is the factor that is read along the vector.
    ct_layout = channels_last if order[-1] == "O" else layouts.data
    ct = permuted(ct, layouts.data, ct_layout)
    n, *positions = reduction_axes([batch, *out_extents], "p")
    position = dict(zip(spatial, positions, strict=True))

    def product(*indices: Any) -> Any:
        index_of = dict(zip(order, indices, strict=True))
        k, c = index_of["O"], index_of["I"]
        channel = c if window.groups == 1 else k // group_filters * group_channels + c
        window_index = [
            position[axis] * stride + index_of[axis] * dilation
            for axis, stride, dilation in zip(spatial, window.strides, window.dilation, strict=True)
        ]
        data = x(n, *window_index, channel)
        cotangent = ct(*[{"N": n, "C": k, **position}[axis] for axis in ct_layout])
        return total(cotangent.astype(accumulator) * data.astype(accumulator), [n, *positions])

    shape = long(extents[axis] for axis in order)
    gradient = te.compute(shape, product, name="weight_gradient")
    return permuted(cast(gradient, dtype), order, layouts.kernel)


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


def _emitted(
    op: Any, like: Tensor, arguments: list[Any], window: Window, layouts: Layouts | None
) -> Tensor:
    layouts = layouts or Layouts.standard(window.rank)
    call = call_op(op, arguments, **window.attributes(), **layouts.attributes())
    return like.emitter.emit(call)


def _data_gradient(call: relax.Call, ct: te.Tensor, w: te.Tensor) -> te.Tensor:
    window = Window.of(call.attrs)
    layouts = Layouts.of(call.attrs, window.rank)
    orders = (layouts.data, layouts.kernel, layouts.data)
    return data_gradient(ct, w, type_shape(call.ty), window, orders, str(call.ty.dtype))


def _weight_gradient(call: relax.Call, x: te.Tensor, ct: te.Tensor) -> te.Tensor:
    window = Window.of(call.attrs)
    layouts = Layouts.of(call.attrs, window.rank)
    return weight_gradient(x, ct, type_shape(call.ty), window, layouts)


_DATA_GRADIENT = define_op(
    "conv_data_gradient", ["ct", "weight", "shape"], in_given_shape, _data_gradient
)
_WEIGHT_GRADIENT = define_op(
    "conv_weight_gradient", ["data", "ct", "shape"], in_given_shape, _weight_gradient
)


# The stock lowerings add up half precision in half precision, and leave an output layout of its
# own, and all but one layout of transposed convolutions, to a code generator that cannot emit them.
_CONVOLUTIONS = [f"relax.nn.conv{rank}d" for rank in (1, 2, 3)]
_TRANSPOSED = [f"{name}_transpose" for name in _CONVOLUTIONS]


@legalization(*_CONVOLUTIONS, *_TRANSPOSED)
def _lower(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower a convolution in any layout; a transposed one is the data gradient of another."""
    window, shape = Window.of(call.attrs), type_shape(call.ty)
    is_transposed = call.op.name in _TRANSPOSED
    form = data_gradient if is_transposed else convolution
    layouts = Layouts.of(call.attrs, window.rank)
    layouts = layouts.transposed if is_transposed else layouts
    out_layout = str(call.attrs.out_layout)
    check_layout(out_layout, layouts.data)
    extents = dict(zip(out_layout, shape, strict=True))
    check_output(call.op.name, [extents[axis] for axis in SPATIAL[window.rank]])

    def expression(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        axes = (layouts.data, layouts.kernel, out_layout)
        return form(x, w, shape, window, axes, str(call.ty.dtype))

    name = call.op.name.rsplit(".", 1)[-1]
    return builder.call_te(expression, *call.args, primfunc_name_hint=name)


def _has_standard_layout(call: relax.Call) -> bool:
    """Whether the layout of a convolution is to be converted.

    It is not where it is another one than the standard: its author has chosen a layout.
    """
    standard = Layouts.standard(len(call.args[1].ty.shape) - 2)
    if call.op.name in _TRANSPOSED:
        standard = standard.transposed
    attributes = Attributes(call.attrs)
    out_layout = standard.data if call.op == _DATA_GRADIENT else attributes.out_layout
    found = Layouts(attributes.data_layout, attributes.kernel_layout)
    return found == standard and out_layout == standard.data


@layout_rule(*_CONVOLUTIONS, *_TRANSPOSED, asks=_has_standard_layout)
def _convolution_layout(site: Site) -> LaidOut | None:
    """The convolution of NHWC data with HWIO weights, or OHWI on a GPU.

    Those of a transposed convolution become HWOI, or IHWO: the same memory as those of the
    convolution whose data gradient it is.
    """
    layouts = _layouts(site)
    if layouts is None:
        return None
    return site.passed(
        _operands(site),
        orders.channels_last(site.operands[0].rank),
        out_layout=layouts["data_layout"],
        **layouts,
    )


# The op that a transposed convolution is imported as where Relax's cannot state it.
@layout_rule("graphgrad.conv_data_gradient", asks=_has_standard_layout)
def _data_gradient_layout(site: Site) -> LaidOut | None:
    """The data gradient of NHWC data and reordered weights, for a shape in the stored order."""
    layouts = _layouts(site)
    if layouts is None:
        return None
    order = orders.channels_last(site.operands[0].rank)
    shape = relax.ShapeExpr(orders.extents(site.shape, order))
    return site.passed([*_operands(site), shape], order, **layouts)


def _layouts(site: Site) -> dict[str, str] | None:
    """The layouts of a convolution, channels last; None if it is not converted."""
    if not _has_standard_layout(site.call):
        return None
    rank = site.operands[1].rank
    data = orders.letters(site.attributes.data_layout, orders.channels_last(rank))
    kernel = orders.letters(site.attributes.kernel_layout, site.filters(rank))
    return {"data_layout": data, "kernel_layout": kernel}


def _operands(site: Site) -> list[Any]:
    """The data and the weights of a convolution, channels last."""
    x, w = site.operands[:2]
    return [x.in_order(orders.channels_last(x.rank)), w.in_order(site.filters(w.rank))]
