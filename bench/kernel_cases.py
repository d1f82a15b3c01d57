"""What `kernels.py` times: convolutions, products of matrices, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

_FLOAT = 4  # bytes


@dataclass(frozen=True)
class Convolution:
    """A square convolution of square images.

    Attributes
    ----------
    batch, channels, size, outputs, kernel, stride, padding, groups : int
        `size` is that of the input; `padding` is on each side.
    """

    batch: int
    channels: int
    size: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    groups: int = 1

    PARTS: ClassVar[tuple[str, ...]] = ("forward", "data", "weight")

    @property
    def name(self) -> str:
        """Batch, channels and size, then output channels, window and stride."""
        grouped = f" g{self.groups}" if self.groups > 1 else ""
        strided = f" s{self.stride}" if self.stride > 1 else ""
        return (
            f"{self.batch},{self.channels},{self.size}->{self.outputs} "
            f"{self.kernel}x{self.kernel}{strided}{grouped}"
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the data (NCHW), the weight (OIHW) and the result (NCHW)."""
        reach = self.size + 2 * self.padding - self.kernel
        extent = reach // self.stride + 1
        return {
            "data": (self.batch, self.channels, self.size, self.size),
            "weight": (self.outputs, self.channels // self.groups, self.kernel, self.kernel),
            "result": (self.batch, self.outputs, extent, extent),
        }

    @property
    def operations(self) -> int:
        """Multiplications and additions of the direct form, those with padding included."""
        taps = math.prod(self.shapes["weight"][1:])
        return 2 * math.prod(self.shapes["result"]) * taps

    @property
    def may_be_winograd(self) -> bool:
        """Whether a minimal filtering algorithm may serve it."""
        return (self.kernel, self.stride, self.groups) == (3, 1, 1) and self.channels >= 16


@dataclass(frozen=True)
class Product:
    """A product of matrices, (rows × inner) by (inner × columns), or a batch of them.

    Attributes
    ----------
    rows, inner, columns : int
    form : str
        Of each operand whether it is as it stands or transposed: "NN", "NT" or "TN".
    batch : int
        0 for matrices alone.
    """

    rows: int
    inner: int
    columns: int
    form: str = "NN"
    batch: int = 0

    PARTS: ClassVar[tuple[str, ...]] = ("forward", "data", "weight")
    may_be_winograd: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The extents and the form."""
        batch = f"{self.batch}x" if self.batch else ""
        return f"{batch}{self.rows}x{self.inner}x{self.columns} {self.form}"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the left operand, the right one, and the result."""
        batch = (self.batch,) if self.batch else ()
        left, right = (self.rows, self.inner), (self.inner, self.columns)
        return {
            "data": (*batch, *(left[::-1] if self.form[0] == "T" else left)),
            "weight": (*batch, *(right[::-1] if self.form[1] == "T" else right)),
            "result": (*batch, self.rows, self.columns),
        }

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * max(self.batch, 1) * self.rows * self.inner * self.columns


Work = Convolution | Product
KINDS: Mapping[str, type[Any]] = {"convolution": Convolution, "product": Product}


@dataclass(frozen=True)
class Case:
    """One kernel: the forward pass of some work, or the gradient of one of its operands.

    Attributes
    ----------
    work : Convolution or Product
    part : str
        "forward", or "data" or "weight": the operand whose gradient is computed.
    """

    work: Work
    part: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it takes, in order."""
        given = {"forward": ("data", "weight"), "data": ("weight", "result")}
        return given.get(self.part, ("data", "result"))

    @property
    def writes(self) -> str:
        """The tensor whose shape its result has."""
        return "result" if self.part == "forward" else self.part

    @property
    def bytes(self) -> int:
        """Bytes of all that it takes and gives."""
        return _FLOAT * sum(math.prod(shape) for shape in self.work.shapes.values())

    def inputs(self) -> list[np.ndarray]:
        """Return what it takes: equal numbers in every process."""
        generator = np.random.default_rng(0)
        shapes = self.work.shapes
        return [2 * generator.random(shapes[k], np.float32) - 1 for k in self.reads]

    def to_json(self) -> dict[str, Any]:
        """Return it as `from_json` reads it."""
        (kind,) = (name for name, kind in KINDS.items() if isinstance(self.work, kind))
        return {"kind": kind, "part": self.part, **asdict(self.work)}


def from_json(told: Mapping[str, Any]) -> Case:
    """Return the case that `Case.to_json` told of."""
    extents = {key: value for key, value in told.items() if key not in ("kind", "part")}
    return Case(KINDS[told["kind"]](**extents), told["part"])
