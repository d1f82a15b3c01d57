"""What a convolution is told: its window, and the orders of the axes of data and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ArgumentError
from ...ir.tensor import Dimension

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
