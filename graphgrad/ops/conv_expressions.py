"""Tensor expressions of a convolution and of its gradients, in any number of spatial dimensions.

Each is a sum of products of two affine reads, the form that lowering schedules as a contraction;
what would spoil it (padding, strides of a transposed convolution, another order) is a stage before.
Half precision adds up in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm import te, tirx

from .tensor import Dimension, accumulator_dtype, bits, is_float

if TYPE_CHECKING:
    from .conv import Window

_VECTOR_WORTHY = 8
"""Input channels from which the weight gradient's innermost loop runs over them."""


def convolution(
    x: te.Tensor,
    w: te.Tensor,
    shape: Sequence[Dimension],
    window: Window,
    layouts: tuple[str, str, str],
    dtype: str,
) -> te.Tensor:
    """y[n,k,p…] = Σ x[n,c,p·stride + r·dilation − padding,…] · w[k,c,r…].

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
    spatial = _spatial(data_layout)
    x = _padded(x, data_layout, window)
    channels, *kernel = _extents(w, kernel_layout, "I" + spatial)
    group_filters = shape[out_layout.index("C")] // window.groups
    wide = _accumulator(str(x.dtype), dtype)
    taps = dict(zip(spatial, _axes(kernel, "r"), strict=True))
    c = te.reduce_axis((0, channels), "c")
    # The channels are summed in the place that they have in the data.
    order = [c if axis == "C" else taps[axis] for axis in data_layout if axis != "N"]

    def product(*indices: Any) -> Any:
        at = dict(zip(out_layout, indices, strict=True))
        k = at["C"]
        channel = c
        if window.groups > 1:
            channel = tirx.floordiv(k, group_filters) * channels + c
        read = {"N": at["N"], "C": channel}
        for axis, stride, dilation in zip(spatial, window.strides, window.dilation, strict=True):
            read[axis] = at[axis] * stride + taps[axis] * dilation
        data = x(*[read[axis] for axis in data_layout])
        weight = w(*[{"O": k, "I": c, **taps}[axis] for axis in kernel_layout])
        return _sum(data.astype(wide) * weight.astype(wide), order)

    return _cast(te.compute(tuple(shape), product, name="convolution"), dtype)


def data_gradient(
    ct: te.Tensor, w: te.Tensor, shape: Sequence[Dimension], window: Window, dtype: str
) -> te.Tensor:
    """x̄[n,c,h…] = Σ ȳ[n,k,p…] · w[k,c,r…] over h = p·stride + r·dilation − padding.

    The cotangent is spread by the stride and padded first. What is left is a plain convolution
    of stride one with the flipped weights, which lowering treats like any other.
    """
    batch, channels, *extents = shape
    _, group_channels, *kernel = w.shape
    _, filters, *out_extents = ct.shape
    reach = window.reach(kernel)

    def spread(n: Any, k: Any, *position: Any) -> Any:
        steps = [i + pad - far for i, pad, far in zip(position, window.before, reach, strict=True)]
        source = [tirx.floordiv(h, stride) for h, stride in zip(steps, window.strides, strict=True)]
        reads = _inside(source, out_extents)
        for h, stride in zip(steps, window.strides, strict=True):
            if stride > 1:
                reads.append(tirx.floormod(h, stride) == 0)
        return tirx.if_then_else(tirx.all(*reads), ct(n, k, *source), tirx.const(0, str(ct.dtype)))

    spread_extents = [extent + far for extent, far in zip(extents, reach, strict=True)]
    spread_ct = te.compute((batch, filters, *spread_extents), spread, name="spread_cotangent")
    group_filters = filters // window.groups
    k, taps = te.reduce_axis((0, group_filters), "k"), _axes(kernel, "r")
    wide = _accumulator(str(ct.dtype), dtype)

    def product(n: Any, c: Any, *position: Any) -> Any:
        filter_index, channel = k, c
        if window.groups > 1:
            filter_index = tirx.floordiv(c, group_channels) * group_filters + k
            channel = tirx.floormod(c, group_channels)
        read = [h + r * d for h, r, d in zip(position, taps, window.dilation, strict=True)]
        flipped = [extent - 1 - r for extent, r in zip(kernel, taps, strict=True)]
        left = spread_ct(n, filter_index, *read)
        right = w(filter_index, channel, *flipped)
        return _sum(left.astype(wide) * right.astype(wide), [k, *taps])

    return _cast(te.compute((batch, channels, *extents), product, name="data_gradient"), dtype)


def weight_gradient(
    x: te.Tensor, ct: te.Tensor, shape: Sequence[Dimension], window: Window
) -> te.Tensor:
    """w̄[k,c,r…] = Σ ȳ[n,k,p…] · x[n,c,p·stride + r·dilation − padding,…].

    Summed in a form whose innermost axis is long: the input channels, or the filters where a group
    has few channels. Only the small result is transposed into (K, C, spatial…).
    """
    filters, group_channels, *kernel = shape
    batch, _, *out_extents = ct.shape
    dtype = str(ct.dtype)
    wide = accumulator_dtype(dtype)
    group_filters = filters // window.groups
    x_last = _padded_channels_last(x, window)
    n, positions = te.reduce_axis((0, batch), "n"), _axes(out_extents, "p")

    def product(taps: Sequence[Any], k: Any, c: Any, cotangent: Any) -> Any:
        channel = c
        if window.groups > 1:
            channel = tirx.floordiv(k, group_filters) * group_channels + c
        read = [
            p * stride + r * dilation
            for p, stride, r, dilation in zip(
                positions, window.strides, taps, window.dilation, strict=True
            )
        ]
        data = x_last(n, *read, channel)
        return _sum(cotangent.astype(wide) * data.astype(wide), [n, *positions])

    channels_last = isinstance(group_channels, int) and group_channels >= _VECTOR_WORTHY
    if channels_last:
        total = te.compute(
            (*kernel, filters, group_channels),
            lambda *i: product(i[:-2], i[-2], i[-1], ct(n, i[-2], *positions)),
            name="weight_gradient",
        )
    else:
        ct_last = te.compute(
            (batch, *out_extents, filters),
            lambda n, *i: ct(n, i[-1], *i[:-1]),
            name="cotangent_filters_last",
        )
        total = te.compute(
            (*kernel, group_channels, filters),
            lambda *i: product(i[:-2], i[-1], i[-2], ct_last(n, *positions, i[-1])),
            name="weight_gradient",
        )

    def filters_first(k: Any, c: Any, *taps: Any) -> Any:
        return total(*taps, *((k, c) if channels_last else (c, k))).astype(dtype)

    return te.compute((filters, group_channels, *kernel), filters_first, name="filters_first")


def permuted(x: te.Tensor, source: str, target: str) -> te.Tensor:
    """Return a tensor of one layout in another."""
    if source == target:
        return x
    return te.compute(
        tuple(_extents(x, source, target)),
        lambda *i: x(*[i[target.index(axis)] for axis in source]),
        name="permuted",
    )


def _padded(x: te.Tensor, layout: str, window: Window) -> te.Tensor:
    if not any(window.padding):
        return x
    pads = dict(zip(_spatial(layout), zip(window.before, window.after, strict=True), strict=True))
    before = [pads.get(axis, (0, 0))[0] for axis in layout]
    after = [pads.get(axis, (0, 0))[1] for axis in layout]
    padded_axes = [axis for axis, letter in enumerate(layout) if any(pads.get(letter, ()))]
    return te.compute(
        tuple(e + b + a for e, b, a in zip(x.shape, before, after, strict=True)),
        lambda *i: _read_inside(x, [at - b for at, b in zip(i, before, strict=True)], padded_axes),
        name="padded",
    )


def _padded_channels_last(x: te.Tensor, window: Window) -> te.Tensor:
    batch, channels, *extents = x.shape
    axes = range(2, 2 + window.rank)

    def padded(n: Any, *position: Any) -> Any:
        *spatial, c = position
        read = [i - before for i, before in zip(spatial, window.before, strict=True)]
        return _read_inside(x, [n, c, *read], axes)

    wide = [e + b + a for e, b, a in zip(extents, window.before, window.after, strict=True)]
    return te.compute((batch, *wide, channels), padded, name="padded")


def _read_inside(x: te.Tensor, indices: Sequence[Any], axes: Sequence[int]) -> Any:
    """Return an element; zero where one of these axes is outside."""
    reads = _inside([indices[axis] for axis in axes], [x.shape[axis] for axis in axes])
    return tirx.if_then_else(tirx.all(*reads), x(*indices), tirx.const(0, str(x.dtype)))


def _inside(values: Sequence[Any], extents: Sequence[Any]) -> list[Any]:
    return [
        tirx.all(value >= 0, value < extent) for value, extent in zip(values, extents, strict=True)
    ]


def _axes(extents: Sequence[Dimension], name: str) -> list[Any]:
    return [te.reduce_axis((0, extent), f"{name}{i}") for i, extent in enumerate(extents)]


def _spatial(layout: str) -> str:
    """Return the spatial axes of a data layout, in the order of a window's numbers."""
    return "".join(axis for axis in "DHW" if axis in layout)


def _extents(x: te.Tensor, layout: str, order: str) -> list[Dimension]:
    return [x.shape[layout.index(axis)] for axis in order]


def _sum(term: Any, axes: Sequence[Any]) -> Any:
    """Sum over axes; without terms it is a plain zero, as TE would leave the memory unwritten."""
    extents = [axis.dom.extent for axis in axes]
    if any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in extents):
        return tirx.const(0, term.ty.dtype)
    return te.sum(term, axis=axes)


def _accumulator(source: str, result: str) -> str:
    """Return the dtype to sum in: the wider of operands and result, and no half precision."""
    if is_float(source) != is_float(result):
        return accumulator_dtype(result)
    return max(accumulator_dtype(source), accumulator_dtype(result), key=bits)


def _cast(x: te.Tensor, dtype: str) -> te.Tensor:
    if str(x.dtype) == dtype:
        return x
    return te.compute(x.shape, lambda *i: x(*i).astype(dtype), name="narrow")
