"""The sum of a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te

from ...ir.tensor import Dimension
from ..elementwise import cast
from .stages import extents_of, long, padded, reduction_axes, spatial_axes, total, wide_dtype
from .window import Window


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
