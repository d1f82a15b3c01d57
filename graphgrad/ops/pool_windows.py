"""The windows of a pooling: from outputs and taps to positions of the input, and back.

A *tap* is an element of a window, by its index along each spatial axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from ..errors import ArgumentError

LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
"""The layout of a pooling that names none, by the number of spatial axes."""

_MAX_INT8 = 127

Indices = Sequence[Any]


@dataclass(frozen=True)
class Pool:
    """The windows of a pooling: one number per spatial axis, padding as all before, all after.

    The layout is a permutation of that in `LAYOUTS`, which it is by default.

    Raises
    ------
    ArgumentError
        The layout is none, such as the blocked NCHW4c.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool = False
    count_include_pad: bool = False
    layout: str = ""

    def __post_init__(self) -> None:
        if not self.layout:
            object.__setattr__(self, "layout", LAYOUTS[self.rank])
        if sorted(self.layout) != sorted(LAYOUTS[self.rank]):
            raise ArgumentError(
                f"cannot pool in the layout {self.layout}: layouts are served that permute the "
                f"axes {LAYOUTS[self.rank]}; convert the op's layout first"
            )

    @staticmethod
    def of(attributes: Any) -> Pool:
        """Read the windows from the attributes of a pooling or of one of its gradients."""
        return Pool(
            tuple(int(v) for v in attributes["pool_size"]),
            tuple(int(v) for v in attributes["strides"]),
            tuple(int(v) for v in attributes["padding"]),
            tuple(int(v) for v in attributes["dilation"]),
            bool(attributes["ceil_mode"]),
            bool(attributes["count_include_pad"]),
            str(attributes["layout"]),
        )

    def attributes(self) -> dict[str, Any]:
        """The windows as attributes of a call."""
        return {
            "pool_size": list(self.size),
            "strides": list(self.strides),
            "padding": list(self.padding),
            "dilation": list(self.dilation),
            "ceil_mode": self.ceil_mode,
            "count_include_pad": self.count_include_pad,
            "layout": self.layout,
        }

    @property
    def index_dtype(self) -> str:
        """The dtype of the numbers of taps: a byte where they fit."""
        return "int8" if math.prod(self.size) <= _MAX_INT8 else "int32"

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.size)

    def spatial(self, of_data: Sequence[Any]) -> list[Any]:
        """The entries of the spatial axes among one entry for each axis of the data.

        They come in the order of a window's numbers, whatever the layout is.
        """
        entry_of_axis = dict(zip(self.layout, of_data, strict=True))
        return [entry_of_axis[axis] for axis in LAYOUTS[self.rank][2:]]

    def indices(self, like: Sequence[Any], spatial: Sequence[Any]) -> tuple[Any, ...]:
        """The indices `like` of data, with the indices `spatial` along the spatial axes."""
        index_of_axis = dict(zip(LAYOUTS[self.rank][2:], spatial, strict=True))
        return tuple(index_of_axis.get(axis, i) for axis, i in zip(self.layout, like, strict=True))

    def reduce_axes(self) -> list[Any]:
        """One reduction axis per spatial axis: it runs over the taps of a window."""
        return [te.reduce_axis((0, size), f"tap{axis}") for axis, size in enumerate(self.size)]

    def tap_number(self, taps: Indices, dtype: str | None = None) -> Any:
        """The row-major number of a tap, as `index_dtype` unless another one is given."""
        number: Any = 0
        for tap, size in zip(taps, self.size, strict=True):
            number = number * size + tap
        return number.astype(dtype or self.index_dtype)

    def tap_of(self, number: Any) -> list[Any]:
        """The tap that has a row-major number."""
        taps = []
        for size in reversed(self.size):
            taps.append(tirx.floormod(number, size))
            number = tirx.floordiv(number, size)
        return taps[::-1]

    def positions(self, outputs: Indices, taps: Indices) -> list[Any]:
        """The input coordinates that a tap of an output's window reads."""
        return [
            output * self.strides[axis] + tap * self.dilation[axis] - self.padding[axis]
            for axis, (output, tap) in enumerate(zip(outputs, taps, strict=True))
        ]

    def windows_over_element(self, extents: Indices) -> list[Any]:
        """One reduction axis per spatial axis, over the windows that an element can be in.

        `extents` are those of the outputs.
        """
        counts = [self._most_windows(axis, extent) for axis, extent in enumerate(extents)]
        return [te.reduce_axis((0, count), f"window{axis}") for axis, count in enumerate(counts)]

    def reached_by(
        self, positions: Indices, windows: Indices, extents: Indices
    ) -> tuple[list[Any], list[Any], Any]:
        """The output of a window over an element, the tap there, and whether both exist."""
        outputs, taps, exists = [], [], []
        for axis, (position, window) in enumerate(zip(positions, windows, strict=True)):
            stride, dilation = self.strides[axis], self.dilation[axis]
            padded = position + self.padding[axis]
            if self._runs_over_all(axis, extents[axis]):
                output = window
                offset = padded - output * stride
            elif isinstance(window, tirx.IntImm):
                # With a number behind the division TVM's `FlattenBuffer` divides by zero.
                output = tirx.floordiv(padded - window * stride, stride)
                offset = tirx.floormod(padded, stride) + window * stride
            else:  # the last that starts at or before the element, and those before it
                output = tirx.floordiv(padded, stride) - window
                offset = padded - output * stride
            tap = tirx.floordiv(offset, dilation)
            outputs.append(output)
            taps.append(tap)
            exists += [output >= 0, output < extents[axis], offset >= 0, tap < self.size[axis]]
            if dilation > 1:
                exists.append(tirx.floormod(offset, dilation) == 0)
        return outputs, taps, tirx.all(*exists)

    def _most_windows(self, axis: int, extent: Any) -> int:
        """The greatest number of windows over one element along an axis of `extent` outputs."""
        if self._runs_over_all(axis, extent):
            return max(int(extent), 1)
        span = (self.size[axis] - 1) * self.dilation[axis] + 1
        return -(-span // self.strides[axis])

    def _runs_over_all(self, axis: int, extent: Any) -> bool:
        """Whether the loop over windows visits all of them along an axis.

        It does where there are fewer of them than could lie over an element, as in global pooling.
        """
        span = (self.size[axis] - 1) * self.dilation[axis] + 1
        is_known = isinstance(extent, int | tirx.IntImm)
        return is_known and int(extent) < -(-span // self.strides[axis])

    def count(self, outputs: Indices, extents: Indices) -> Any:
        """The number of elements that the average of an output's window divides by; at least 1.

        Padding counts where `count_include_pad` says so. What ``ceil_mode`` adds beyond it never
        does.
        """
        product: Any = 1
        for axis, (output, extent) in enumerate(zip(outputs, extents, strict=True)):
            before = self.padding[axis] if self.count_include_pad else 0
            after = self.padding[axis + self.rank] if self.count_include_pad else 0
            dilation = self.dilation[axis]
            start = output * self.strides[axis] - self.padding[axis]
            # The first and the last tap whose position start + tap · dilation counts.
            first = tirx.max(tirx.floordiv(dilation - 1 - before - start, dilation), 0)
            end = extent + after
            last = tirx.min(tirx.floordiv(end - 1 - start, dilation), self.size[axis] - 1)
            product = product * tirx.max(last - first + 1, 0)
        return tirx.max(product, 1)


def number_of_taps(pool: Pool) -> int:
    """The number of elements of a window."""
    return math.prod(pool.size)


def inside(positions: Indices, extents: Indices) -> Any:
    """The condition that coordinates are those of an element."""
    return tirx.all(
        *(
            condition
            for position, extent in zip(positions, extents, strict=True)
            for condition in (position >= 0, position < extent)
        )
    )
