"""The two gradients of a convolution, as ops of our own, in any number of spatial dimensions.

With ``y = conv(x, w)`` the three maps ``conv``, `conv_data_gradient` and `conv_weight_gradient` are
bilinear and closed under differentiation: each one's gradients are the other two. So a rule for
each is one line, and derivatives exist to any order. A transposed convolution is a data gradient.

Data are (N, C, spatial…), weights (K, C / groups, spatial…). Derivation of both sums: Dumoulin and
Visin, *A guide to convolution arithmetic for deep learning* (2016), sections 4.3 to 4.6, with
dilation and groups added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te

from ..errors import ArgumentError
from . import conv_expressions
from .define import call_op, define_op
from .tensor import Dimension, Tensor, dimension_text, type_shape


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
        """Return how far a window extends past its first tap along each spatial axis."""
        return [(k - 1) * d for k, d in zip(kernel, self.dilation, strict=True)]

    def attributes(self) -> dict[str, Any]:
        """Return the window as attributes of a call."""
        return {
            "strides": list(self.strides),
            "padding": list(self.padding),
            "dilation": list(self.dilation),
            "groups": self.groups,
        }


def conv(x: Tensor, w: Tensor, window: Window) -> Tensor:
    """Return the convolution of ``x`` (N, C, spatial…) with ``w`` (K, C / groups, spatial…)."""
    function = getattr(relax.op.nn, f"conv{window.rank}d")
    return x.emitter.emit(function(x.expr, w.expr, **window.attributes()))


def conv_data_gradient(ct: Tensor, w: Tensor, shape: Sequence[Dimension], window: Window) -> Tensor:
    """Return x̄ of ``y = conv(x, w)`` from ct (N, K, …) and w.

    Parameters
    ----------
    ct : Tensor
        Cotangent of y; positions at its far ends may be missing, and count as zeros.
    w : Tensor
        (K, C / groups, spatial…).
    shape : sequence
        The shape of x: (N, C, spatial…).
    window : Window
    """
    arguments = [ct.expr, w.expr, relax.ShapeExpr(list(shape))]
    return ct.emitter.emit(call_op(_DATA_GRADIENT, arguments, **window.attributes()))


def conv_weight_gradient(
    x: Tensor, ct: Tensor, shape: Sequence[Dimension], window: Window
) -> Tensor:
    """Return w̄ of ``y = conv(x, w)`` from x and ct (N, K, …).

    Parameters
    ----------
    x : Tensor
        (N, C, spatial…).
    ct : Tensor
        Cotangent of y; positions at its far ends may be missing, and count as zeros.
    shape : sequence
        The shape of w: (K, C / groups, spatial…).
    window : Window
    """
    arguments = [x.expr, ct.expr, relax.ShapeExpr(list(shape))]
    return ct.emitter.emit(call_op(_WEIGHT_GRADIENT, arguments, **window.attributes()))


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


def _infer_type(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[2], call.args[0].ty.dtype)


def _data_gradient(call: relax.Call, ct: te.Tensor, w: te.Tensor) -> te.Tensor:
    return conv_expressions.data_gradient(
        ct, w, type_shape(call.ty), Window.of(call.attrs), str(call.ty.dtype)
    )


def _weight_gradient(call: relax.Call, x: te.Tensor, ct: te.Tensor) -> te.Tensor:
    return conv_expressions.weight_gradient(x, ct, type_shape(call.ty), Window.of(call.attrs))


_DATA_GRADIENT = define_op(
    "conv_data_gradient", ["ct", "weight", "shape"], _infer_type, _data_gradient
)
_WEIGHT_GRADIENT = define_op(
    "conv_weight_gradient", ["data", "ct", "shape"], _infer_type, _weight_gradient
)
