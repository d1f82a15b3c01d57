"""The two gradients of a two-dimensional convolution, as ops of our own.

With ``y = conv2d(x, w)`` the three maps ``conv2d``, `conv2d_data_gradient` and
`conv2d_weight_gradient` are bilinear and closed under differentiation: each one's gradients are
the other two. So a rule for each is one line, and derivatives exist to any order.

Layouts are NCHW for data and OIHW for weights. Derivation of both sums: Dumoulin and Visin, *A
guide to convolution arithmetic for deep learning* (2016), sections 4.3 to 4.6, with dilation and
groups added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from .define import call_op, define_op
from .tensor import Dimension, Tensor, accumulator_dtype, type_shape

_VECTOR_WORTHY = 8
"""Input channels from which the weight gradient's innermost loop runs over them."""


@dataclass(frozen=True)
class Window:
    """The window of a convolution: one number per spatial axis, padding as (before, after).

    Attributes
    ----------
    strides, dilation : tuple of int
        For height and width.
    padding : tuple of int
        Top, left, bottom, right.
    groups : int
    """

    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int

    @staticmethod
    def of(attributes: Any) -> Window:
        """Read the window from the attributes of a convolution or of one of its gradients."""
        return Window(
            tuple(int(v) for v in attributes["strides"]),  # type: ignore[arg-type]
            tuple(int(v) for v in attributes["padding"]),  # type: ignore[arg-type]
            tuple(int(v) for v in attributes["dilation"]),  # type: ignore[arg-type]
            int(attributes["groups"]),
        )

    def attributes(self) -> dict[str, Any]:
        """Return the window as attributes of a call."""
        return {
            "strides": list(self.strides),
            "padding": list(self.padding),
            "dilation": list(self.dilation),
            "groups": self.groups,
        }


def conv2d(x: Tensor, w: Tensor, window: Window) -> Tensor:
    """Return the convolution of ``x`` (N, C, H, W) with ``w`` (K, C / groups, R, S)."""
    return x.emitter.emit(
        relax.op.nn.conv2d(
            x.expr,
            w.expr,
            strides=window.strides,
            padding=window.padding,
            dilation=window.dilation,
            groups=window.groups,
        )
    )


def conv2d_data_gradient(
    ct: Tensor, w: Tensor, shape: Sequence[Dimension], window: Window
) -> Tensor:
    """Return x̄ of ``y = conv2d(x, w)``: shape (N, C, H, W) from ct (N, K, P, Q) and w.

    Parameters
    ----------
    ct : Tensor
        Cotangent of y.
    w : Tensor
        (K, C / groups, R, S).
    shape : sequence
        The shape of x.
    window : Window
    """
    arguments = [ct.expr, w.expr, relax.ShapeExpr(list(shape))]
    return ct.emitter.emit(call_op(_DATA_GRADIENT, arguments, **window.attributes()))


def conv2d_weight_gradient(
    x: Tensor, ct: Tensor, shape: Sequence[Dimension], window: Window
) -> Tensor:
    """Return w̄ of ``y = conv2d(x, w)``: shape (K, C / groups, R, S) from x and ct (N, K, P, Q).

    Parameters
    ----------
    x : Tensor
        (N, C, H, W).
    ct : Tensor
        Cotangent of y.
    shape : sequence
        The shape of w.
    window : Window
    """
    arguments = [x.expr, ct.expr, relax.ShapeExpr(list(shape))]
    return ct.emitter.emit(call_op(_WEIGHT_GRADIENT, arguments, **window.attributes()))


def _infer_type(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[2], call.args[0].ty.dtype)


def _inside(value: Any, extent: Any) -> Any:
    return tirx.all(value >= 0, value < extent)


def _data_gradient_expression(call: relax.Call, ct: te.Tensor, w: te.Tensor) -> te.Tensor:
    """x̄[n,c,h,w] = Σ ȳ[n,k,p,q] · w[k,c,r,s] over h = p·stride + r·dilation − padding.

    The cotangent is spread by the stride and padded first. What is left is a plain convolution
    of stride one with the flipped weights, which lowering treats like any other.
    """
    window = Window.of(call.attrs)
    batch, channels, height, width = type_shape(call.ty)
    _, group_channels, rows, columns = w.shape
    _, filters, out_height, out_width = ct.shape
    (stride_h, stride_w), (dilate_h, dilate_w) = window.strides, window.dilation
    reach_h, reach_w = (rows - 1) * dilate_h, (columns - 1) * dilate_w
    dtype = str(ct.dtype)

    def spread(n: Any, k: Any, i: Any, j: Any) -> Any:
        h, v = i + window.padding[0] - reach_h, j + window.padding[1] - reach_w
        p, q = tirx.floordiv(h, stride_h), tirx.floordiv(v, stride_w)
        reads = [_inside(p, out_height), _inside(q, out_width)]
        if stride_h > 1:
            reads.append(tirx.floormod(h, stride_h) == 0)
        if stride_w > 1:
            reads.append(tirx.floormod(v, stride_w) == 0)
        return tirx.if_then_else(tirx.all(*reads), ct[n, k, p, q], tirx.const(0, dtype))

    spread_ct = te.compute(
        (batch, filters, height + reach_h, width + reach_w), spread, name="spread_cotangent"
    )
    group_filters = filters // window.groups
    k = te.reduce_axis((0, group_filters), "k")
    r, s = te.reduce_axis((0, rows), "r"), te.reduce_axis((0, columns), "s")
    wide = accumulator_dtype(dtype)

    def product(n: Any, c: Any, h: Any, v: Any) -> Any:
        filter_index, channel = k, c
        if window.groups > 1:
            filter_index = tirx.floordiv(c, group_channels) * group_filters + k
            channel = tirx.floormod(c, group_channels)
        left = spread_ct[n, filter_index, h + r * dilate_h, v + s * dilate_w]
        right = w[filter_index, channel, rows - 1 - r, columns - 1 - s]
        return te.sum(left.astype(wide) * right.astype(wide), axis=[k, r, s])

    total = te.compute((batch, channels, height, width), product, name="data_gradient")
    return _narrow(total, dtype)


def _weight_gradient_expression(call: relax.Call, x: te.Tensor, ct: te.Tensor) -> te.Tensor:
    """w̄[k,c,r,s] = Σ ȳ[n,k,p,q] · x[n,c,p·stride + r·dilation − padding, …].

    Summed in a form whose innermost axis is long: the input channels, or the filters where a group
    has few channels. Only the small result is transposed into OIHW.
    """
    window = Window.of(call.attrs)
    filters, group_channels, rows, columns = type_shape(call.ty)
    batch, channels, height, width = x.shape
    _, _, out_height, out_width = ct.shape
    (stride_h, stride_w), (dilate_h, dilate_w) = window.strides, window.dilation
    top, left, bottom, right = window.padding
    dtype = str(ct.dtype)
    wide = accumulator_dtype(dtype)
    group_filters = filters // window.groups

    def padded(n: Any, i: Any, j: Any, c: Any) -> Any:
        h, v = i - top, j - left
        reads = tirx.all(_inside(h, height), _inside(v, width))
        return tirx.if_then_else(reads, x[n, c, h, v], tirx.const(0, dtype))

    x_last = te.compute(
        (batch, height + top + bottom, width + left + right, channels), padded, name="padded"
    )
    n = te.reduce_axis((0, batch), "n")
    p, q = te.reduce_axis((0, out_height), "p"), te.reduce_axis((0, out_width), "q")

    def product(r: Any, s: Any, k: Any, c: Any, read_ct: Any) -> Any:
        channel = c
        if window.groups > 1:
            channel = tirx.floordiv(k, group_filters) * group_channels + c
        data = x_last[n, p * stride_h + r * dilate_h, q * stride_w + s * dilate_w, channel]
        return te.sum(read_ct(k).astype(wide) * data.astype(wide), axis=[n, p, q])

    channels_last = isinstance(group_channels, int) and group_channels >= _VECTOR_WORTHY
    if channels_last:
        total = te.compute(
            (rows, columns, filters, group_channels),
            lambda r, s, k, c: product(r, s, k, c, lambda k: ct[n, k, p, q]),
            name="weight_gradient",
        )
    else:
        ct_last = te.compute(
            (batch, out_height, out_width, filters),
            lambda n, p, q, k: ct[n, k, p, q],
            name="cotangent_filters_last",
        )
        total = te.compute(
            (rows, columns, group_channels, filters),
            lambda r, s, c, k: product(r, s, k, c, lambda k: ct_last[n, p, q, k]),
            name="weight_gradient",
        )

    def oihw(k: Any, c: Any, r: Any, s: Any) -> Any:
        return (total[r, s, k, c] if channels_last else total[r, s, c, k]).astype(dtype)

    return te.compute((filters, group_channels, rows, columns), oihw, name="oihw")


def _narrow(x: te.Tensor, dtype: str) -> te.Tensor:
    if str(x.dtype) == dtype:
        return x
    return te.compute(x.shape, lambda *i: x(*i).astype(dtype), name="narrow")


_DATA_GRADIENT = define_op(
    "conv2d_data_gradient", ["ct", "weight", "shape"], _infer_type, _data_gradient_expression
)
_WEIGHT_GRADIENT = define_op(
    "conv2d_weight_gradient", ["data", "ct", "shape"], _infer_type, _weight_gradient_expression
)
