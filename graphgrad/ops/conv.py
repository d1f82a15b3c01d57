"""The two gradients of a convolution, as ops of our own, in any number of spatial dimensions.

With ``y = conv(x, w)`` the three maps ``conv``, `conv_data_gradient` and `conv_weight_gradient` are
bilinear and closed under differentiation: each one's gradients are the other two. So a rule for
each is one line, and derivatives exist to any order. A transposed convolution is a data gradient.

Data are N, C and the spatial axes, weights O, I (C / groups) and these, each in the order of a
layout. The cotangent of the output has the layout of the data. Derivation of both sums: Dumoulin
and Visin, *A guide to convolution arithmetic for deep learning* (2016), sections 4.3 to 4.6, with
dilation and groups added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te

from ..errors import ArgumentError
from . import conv_gradients
from .define import call_op, define_op
from .tensor import Dimension, Tensor, dimension_text, type_shape

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
        """Return the layouts with the channels first."""
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
        """Return those of the data's axes that are spatial, in the order of a window's numbers."""
        at = dict(zip(self.data, of_data, strict=True))
        return [at[axis] for axis in SPATIAL[len(of_data) - 2]]

    def attributes(self) -> dict[str, Any]:
        """Return the layouts as attributes of a call."""
        return {"data_layout": self.data, "kernel_layout": self.kernel}


def conv(x: Tensor, w: Tensor, window: Window, layouts: Layouts | None = None) -> Tensor:
    """Return the convolution of data with weights, in these layouts or with the channels first."""
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
    """Return x̄ of ``y = conv(x, w)`` from ct and w.

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
    """Return w̄ of ``y = conv(x, w)`` from x and ct.

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


def _emitted(
    op: Any, like: Tensor, arguments: list[Any], window: Window, layouts: Layouts | None
) -> Tensor:
    layouts = layouts or Layouts.standard(window.rank)
    call = call_op(op, arguments, **window.attributes(), **layouts.attributes())
    return like.emitter.emit(call)


def _infer_type(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[2], call.args[0].ty.dtype)


def _data_gradient(call: relax.Call, ct: te.Tensor, w: te.Tensor) -> te.Tensor:
    window = Window.of(call.attrs)
    layouts = Layouts.of(call.attrs, window.rank)
    orders = (layouts.data, layouts.kernel, layouts.data)
    return conv_gradients.data_gradient(
        ct, w, type_shape(call.ty), window, orders, str(call.ty.dtype)
    )


def _weight_gradient(call: relax.Call, x: te.Tensor, ct: te.Tensor) -> te.Tensor:
    window = Window.of(call.attrs)
    layouts = Layouts.of(call.attrs, window.rank)
    return conv_gradients.weight_gradient(x, ct, type_shape(call.ty), window, layouts)


_DATA_GRADIENT = define_op(
    "conv_data_gradient", ["ct", "weight", "shape"], _infer_type, _data_gradient
)
_WEIGHT_GRADIENT = define_op(
    "conv_weight_gradient", ["data", "ct", "shape"], _infer_type, _weight_gradient
)
