"""The sum of a convolution's weight gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te

from ...ir.tensor import Dimension, accumulator_dtype
from ..elementwise import cast
from .stages import extents_of, long, padded, permuted, reduction_axes, spatial_axes, total
from .window import Layouts, Window

_MIN_VECTOR_CHANNELS = 8
"""Input channels from which the weight gradient's innermost loop runs over them."""


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
