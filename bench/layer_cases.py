"""What `layers.py` times: layers whose time is that of moving their tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

_FLOAT = 4  # bytes

IMAGES = (8, 56, 56, 64)
"""Batch, height, width and channels."""

CONTIGUOUS_IMAGES = (8, 64, 56, 56)
ROWS = (4096, 768)
TOKENS = (2048, 256)
"""Rows that fit the caches of most processors."""


@dataclass(frozen=True)
class Layer:
    """A layer in training form.

    Attributes
    ----------
    kind : str
        As the contenders know it.
    shape : tuple of int
        Of the data, as they lie in memory.
    result : tuple of int
        The shape of the result.
    scaled : bool
        Whether it has a factor and an offset for each channel, or each element of a row.
    keeps_data : bool
        Whether the gradient needs the data, or what is computed from them.
    """

    kind: str
    shape: tuple[int, ...]
    result: tuple[int, ...]
    scaled: bool = False
    keeps_data: bool = True

    @property
    def name(self) -> str:
        """The kind and the shape."""
        return f"{self.kind} {'x'.join(map(str, self.shape))}"

    @property
    def channels(self) -> int:
        """The length of factors and offsets."""
        return self.shape[1] if self.kind.endswith("NCHW") else self.shape[-1]


PARTS = ("forward", "training")
"""The forward pass alone; the forward pass and all gradients."""


@dataclass(frozen=True)
class LayerCase:
    """One call that is timed: a part of a layer."""

    work: Layer
    part: str

    @property
    def bytes(self) -> int:
        """Bytes that are read and written at least: data, result, cotangent, gradient.

        The gradient reads the data again where it needs them: they have left the cache.
        """
        data, result = math.prod(self.work.shape), math.prod(self.work.result)
        backward = (2 if self.work.keeps_data else 1) * data + result
        return _FLOAT * (data + result + (backward if self.part == "training" else 0))

    def inputs(self) -> list[np.ndarray]:
        """Return data, factor and offset if there are any, cotangent: equal in every process."""
        generator = np.random.default_rng(0)
        vectors = [(self.work.channels,)] * 2 if self.work.scaled else []
        cotangent = [self.work.result] if self.part == "training" else []
        shapes = [self.work.shape, *vectors, *cotangent]
        return [generator.standard_normal(shape, np.float32) for shape in shapes]

    def to_json(self) -> dict[str, Any]:
        """Return it as `layer_from_json` reads it."""
        return {"part": self.part, **asdict(self.work)}


def layer_from_json(told: Mapping[str, Any]) -> LayerCase:
    """Return the case that `LayerCase.to_json` told of."""
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in told.items() if k != "part"}
    return LayerCase(Layer(**fields), told["part"])


def _halved(shape: tuple[int, ...], axes: tuple[int, int], factor: float = 0.5) -> tuple[int, ...]:
    return tuple(int(n * factor) if axis in axes else n for axis, n in enumerate(shape))


LAYERS = (
    Layer("relu", IMAGES, IMAGES),
    Layer("batch norm", IMAGES, IMAGES, scaled=True),
    Layer("batch norm NCHW", CONTIGUOUS_IMAGES, CONTIGUOUS_IMAGES, scaled=True),
    Layer("group norm", IMAGES, IMAGES, scaled=True),
    Layer("group norm NCHW", CONTIGUOUS_IMAGES, CONTIGUOUS_IMAGES, scaled=True),
    Layer("layer norm", ROWS, ROWS, scaled=True),
    Layer("layer norm", TOKENS, TOKENS, scaled=True),
    Layer("softmax", ROWS, ROWS),
    Layer("log softmax", ROWS, ROWS),
    Layer("gelu", ROWS, ROWS),
    Layer("silu", ROWS, ROWS),
    Layer("max pool 3/2", IMAGES, _halved(IMAGES, (1, 2))),
    Layer("max pool 2/2", IMAGES, _halved(IMAGES, (1, 2))),
    Layer("average pool 2/2", IMAGES, _halved(IMAGES, (1, 2)), keeps_data=False),
    Layer("global average pool", IMAGES, (8, 1, 1, 64), keeps_data=False),
    Layer("resize bilinear", IMAGES, _halved(IMAGES, (1, 2), 2), keeps_data=False),
    Layer("resize nearest", IMAGES, _halved(IMAGES, (1, 2), 2), keeps_data=False),
)
"""Images lie with their channels last, unless the kind says otherwise."""
