"""The tensor expression of a convolution, and what its gradients' have in common with it.

Each is a sum of products of two affine reads, the form that lowering schedules as a contraction;
what would spoil it (padding, another order of the axes) is a stage before. Axes are named by the
letters of layouts, so that one expression serves all layouts in any number of spatial dimensions.
Half precision adds up in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvm import te, tirx

from .tensor import Dimension, accumulator_dtype, bits, is_float, same_dimension

if TYPE_CHECKING:
    from .conv import Window


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
    spatial = spatial_axes(data_layout)
    x = padded(x, data_layout, data_layout, window)
    channels, *kernel = extents_of(w, kernel_layout, "I" + spatial)
    group_filters = shape[out_layout.index("C")] // window.groups
    wide = wide_dtype(str(x.dtype), dtype)
    taps = dict(zip(spatial, reduction_axes(kernel, "r"), strict=True))
    (c,) = reduction_axes([channels], "c")
    # The channels are summed in the place that they have in the data.
    order = [c if axis == "C" else taps[axis] for axis in data_layout if axis != "N"]

    def product(*indices: Any) -> Any:
        at = dict(zip(out_layout, indices, strict=True))
        k = at["C"]
        channel = c if window.groups == 1 else k // group_filters * channels + c
        read = {"N": at["N"], "C": channel}
        for axis, stride, dilation in zip(spatial, window.strides, window.dilation, strict=True):
            read[axis] = at[axis] * stride + taps[axis] * dilation
        data = x(*[read[axis] for axis in data_layout])
        weight = w(*[{"O": k, "I": c, **taps}[axis] for axis in kernel_layout])
        return total(data.astype(wide) * weight.astype(wide), order)

    return cast(te.compute(long(shape), product, name="convolution"), dtype)


def permuted(x: te.Tensor, source: str, target: str) -> te.Tensor:
    """Return a tensor of one layout in another."""
    if source == target:
        return x
    return te.compute(
        long(extents_of(x, source, target)),
        lambda *i: x(*[i[target.index(axis)] for axis in source]),
        name="permuted",
    )


def padded(x: te.Tensor, source: str, target: str, window: Window) -> te.Tensor:
    """Return data of one layout in another, with the padding of a window."""
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
) -> te.Tensor:
    """Return a tensor of one layout in another, inside a border of zeros.

    Parameters
    ----------
    x : te.Tensor
    source, target : str
        Its layout, and that of the result.
    before : mapping
        From an axis to the number of zeros before the first element.
    extents : mapping
        From an axis to its extent in the result; what is beyond it is left out.
    """
    given = dict(zip(source, extents_of(x, source, source), strict=True))
    first = {axis: before.get(axis, 0) for axis in source}
    wanted = {axis: extents.get(axis, given[axis]) for axis in source}
    changed = [
        axis
        for axis in source
        if not (same_dimension(first[axis], 0) and same_dimension(wanted[axis], given[axis]))
    ]
    if not changed:
        return permuted(x, source, target)

    def element(*indices: Any) -> Any:
        at = dict(zip(target, indices, strict=True))
        read = {axis: at[axis] - first[axis] for axis in source}
        inside = [tirx.all(read[axis] >= 0, read[axis] < given[axis]) for axis in changed]
        value = x(*[read[axis] for axis in source])
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, str(x.dtype)))

    return te.compute(long([wanted[axis] for axis in target]), element, name="padded")


def spatial_axes(layout: str) -> str:
    """Return the spatial axes of a layout, in the order of a window's numbers."""
    return "".join(axis for axis in "DHW" if axis in layout)


def extents_of(x: te.Tensor, layout: str, axes: str) -> list[Dimension]:
    """Return the extents of some axes of a tensor: ints, and expressions where symbolic."""
    extents = [x.shape[layout.index(axis)] for axis in axes]
    return [int(e) if isinstance(e, tirx.IntImm) else e for e in extents]


def long(extents: Iterable[Dimension]) -> tuple[Any, ...]:
    """Return extents in 64 bits, as symbolic ones have: indices of one kernel have one dtype."""
    return tuple(tirx.IntImm("int64", e) if isinstance(e, int) else e for e in extents)


def reduction_axes(extents: Sequence[Dimension], name: str) -> list[Any]:
    """Return a variable to sum over for each extent, and plain zeros for those of one element."""
    zero = tirx.IntImm("int64", 0)
    return [
        zero
        if isinstance(extent, tirx.IntImm) and int(extent) == 1
        else te.reduce_axis((zero, extent), f"{name}{i}")
        for i, extent in enumerate(long(extents))
    ]


def total(term: Any, axes: Sequence[Any]) -> Any:
    """Return the sum of a term over variables of `reduction_axes`.

    Without any terms it is a plain zero, as TVM would leave the memory unwritten.
    """
    summed = [axis for axis in axes if isinstance(axis, tirx.IterVar)]
    extents = [axis.dom.extent for axis in summed]
    if any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in extents):
        return tirx.const(0, term.ty.dtype)
    return te.sum(term, axis=summed) if summed else term


def wide_dtype(source: str, result: str) -> str:
    """Return the dtype to sum in: the wider of operands and result, and no half precision."""
    if is_float(source) != is_float(result):
        return accumulator_dtype(result)
    return max(accumulator_dtype(source), accumulator_dtype(result), key=bits)


def cast(x: te.Tensor, dtype: str) -> te.Tensor:
    """Return a tensor in another dtype."""
    if str(x.dtype) == dtype:
        return x
    return te.compute(x.shape, lambda *i: x(*i).astype(dtype), name="narrow")
