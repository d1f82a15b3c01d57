"""Convolutions, plain and transposed, with every form of padding.

TVM's importer pads for SAME by a hidden kernel, and misreads ``output_shape``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Dimension, Tensor, same_shape
from ...ops import functional as op
from ...ops.conv import Window, check_output, conv_data_gradient
from ...ops.conv import conv as convolution
from .node import Node, converter

_SAME = ("SAME_UPPER", "SAME_LOWER")


@converter("Conv")
def conv(node: Node) -> Tensor:
    """y[n,k,p…] = b[k] + Σ x[n,c,p·stride + r·dilation − pad,…] · w[k,c,r…]"""
    x, w = node.tensor(0), node.tensor(1)
    check_weights(node, x, w, channels_of_weights=1)

    def same_pads(axis: int, stride: int, reach: int) -> int:
        extent = x.shape[2 + axis]
        # `reach` is how far a window goes beyond its first element. With stride 1 the padding does
        # not depend on the extent, which then may be symbolic.
        if reach == 0 or stride == 1:
            return reach
        if not isinstance(extent, int):
            raise ModelError(
                f"its auto_pad needs the extent of axis {2 + axis}, which is {extent}, as the "
                "stride is not 1: import with shapes= that give it, or export explicit pads"
            )
        steps = (extent - 1) // stride
        return max(steps * stride + reach + 1 - extent, 0)

    y = convolution(x, w, _window(node, w, same_pads))
    check_output("it", y.shape[2:])
    return biased(node, y)


@converter("ConvTranspose")
def conv_transpose(node: Node) -> Tensor:
    """The gradient of a convolution's data, plus the bias.

    The Relax op states it where it can. Where the output has positions that no window reaches, or
    an output padding is not less than its stride, the gradient op of ours does, by its shape.
    """
    x, w = node.tensor(0), node.tensor(1)
    check_weights(node, x, w, channels_of_weights=0)
    rank = w.ndim - 2
    output_padding = per_axis(node, "output_padding", rank, 0)
    output_shape = node.attribute("output_shape", ())

    def full(axis: int, stride: int, reach: int) -> Dimension:
        return (x.shape[2 + axis] - 1) * stride + reach + 1 + output_padding[axis]

    def cropped(axis: int, stride: int, reach: int) -> int:
        if not output_shape:  # SAME: so much that the output has extent · stride elements
            return max(reach + 1 + output_padding[axis] - stride, 0)
        extent = full(axis, stride, reach)
        if not isinstance(extent, int):
            raise ModelError(
                f"its output_shape needs the extent of axis {2 + axis}, which is "
                f"{x.shape[2 + axis]}: import with shapes= that give it, or export explicit pads"
            )
        return max(extent - int(output_shape[-rank:][axis]), 0)

    window = _window(node, w, cropped, computed=bool(output_shape))
    reach = window.reach(w.shape[2:])
    natural_extents = [
        full(axis, window.strides[axis], reach[axis]) - window.before[axis] - window.after[axis]
        for axis in range(rank)
    ]
    extents = [int(extent) for extent in output_shape[-rank:]] if output_shape else natural_extents
    check_output("it", extents)
    # Relax refuses an output padding of a stride or more, and takes no output extents.
    is_standard = all(a < b for a, b in zip(output_padding, window.strides, strict=True))
    if is_standard and same_shape(extents, natural_extents):
        function = getattr(relax.op.nn, f"conv{rank}d_transpose")
        call = function(x.expr, w.expr, output_padding=output_padding, **window.attributes())
        return biased(node, x.emitter.emit(call))
    shape = [x.shape[0], w.shape[1] * window.groups, *extents]
    return biased(node, conv_data_gradient(x, w, shape, window))


def _window(
    node: Node,
    w: Tensor,
    total_pads: Callable[[int, int, int], int],
    computed: bool = False,
) -> Window:
    """Read a node's window.

    Parameters
    ----------
    node : Node
    w : Tensor
        The weights.
    total_pads : callable
        Of an axis, its stride and reach: the padding before and after it together, where the
        node asks for it to be computed.
    computed : bool
        Whether the padding is computed even if auto_pad does not ask for it.
    """
    rank = w.ndim - 2
    strides = per_axis(node, "strides", rank, 1, least=1)
    dilation = per_axis(node, "dilations", rank, 1, least=1)
    groups = node.attribute("group", 1)
    mode = _auto_pad(node)
    if mode in _SAME or computed:
        reach = [
            (size - 1) * axis_dilation
            for size, axis_dilation in zip(w.shape[2:], dilation, strict=True)
        ]
        totals = [total_pads(axis, strides[axis], reach[axis]) for axis in range(rank)]
        # SAME_UPPER alone has the larger half of an odd number after the data.
        smaller = [total // 2 for total in totals]
        larger = [total - smaller_half for total, smaller_half in zip(totals, smaller, strict=True)]
        pads = [*smaller, *larger] if mode == "SAME_UPPER" else [*larger, *smaller]
    elif mode == "VALID":
        pads = [0] * (2 * rank)
    else:
        pads = per_axis(node, "pads", 2 * rank, 0, least=0)
    return Window(tuple(strides), tuple(pads), tuple(dilation), groups)


def _auto_pad(node: Node) -> str:
    """The auto_pad of a node; the empty string means NOTSET."""
    value = node.attribute("auto_pad", b"NOTSET")
    mode = value.decode() if isinstance(value, bytes) else value
    if mode not in ("NOTSET", "VALID", "", *_SAME):
        raise ModelError(f"its auto_pad is {mode!r}: NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    return str(mode)


def per_axis(
    node: Node, name: str, count: int, default: int, least: int | None = None
) -> list[int]:
    """A list attribute: one number per axis.

    Raises
    ------
    ModelError
        It has another length, or a number less than `least`.
    """
    values = [int(value) for value in node.attribute(name, (default,) * count) or [default] * count]
    if len(values) != count:
        raise ModelError(f"its {name} has {len(values)} numbers: {count} are needed")
    if least is not None and min(values) < least:
        raise ModelError(f"its {name} are {values}: each has to be {least} or more")
    return values


def check_weights(node: Node, x: Tensor, w: Tensor, channels_of_weights: int) -> None:
    """Refuse ranks and shapes that do not belong together.

    `channels_of_weights` is the axis of `w` that counts the channels of `x`: 1, or 0 if transposed.

    Raises
    ------
    ModelError
        Names the ranks or shapes given, and what is needed.
    """
    if w.ndim != x.ndim or w.ndim not in (3, 4, 5):
        raise ModelError(
            f"its data have {x.ndim} axes and its weights {w.ndim}: both need 3, 4 or 5, for 1 to "
            "3 spatial axes"
        )
    kernel = node.attribute("kernel_shape", ())
    if kernel and not same_shape([int(size) for size in kernel], w.shape[2:]):
        raise ModelError(f"its kernel_shape is {list(kernel)}, its weights have {w.shape[2:]}")
    groups = node.attribute("group", 1)
    per_group = groups if channels_of_weights == 1 else 1
    channels = w.shape[channels_of_weights]
    static_extents = [
        extent for extent in (x.shape[1], channels, w.shape[0]) if isinstance(extent, int)
    ]
    if groups < 1 or (
        len(static_extents) == 3 and (x.shape[1] != channels * per_group or w.shape[0] % groups)
    ):
        raise ModelError(
            f"its data have {x.shape[1]} channels and its weights the shape {w.shape}, which do "
            f"not belong together with group = {groups}"
        )


def biased(node: Node, y: Tensor, index: int = 2) -> Tensor:
    """y with a number added to each channel, if the node has an input for it."""
    if not node.has(index):
        return y
    bias: Any = node.tensor(index)
    unit_extents: Sequence[int] = [1] * (y.ndim - 2)
    return y + op.reshape(bias, [1, bias.shape[0], *unit_extents])
