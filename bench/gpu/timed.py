"""The models whose steps are timed, at full width: their sizes, their data and their weights.

Nothing here needs more than numpy: on the GPU machine all contenders draw the same arrays from a
seed, so that no weights travel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

PRECISIONS = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16"}
"""By the names that contenders have, those that graphgrad has."""

OURS = [
    *(f"graphgrad {precision}" for precision in PRECISIONS),
    *(f"graphgrad own {precision}" for precision in PRECISIONS),
]
"""Our contenders, with cuDNN where it is estimated to be faster, and with kernels of ours alone."""

RATE = 0.01
MOMENTUM = 0.9
CLASSES = 1000
WORDS = 8192
SEED = 0
HEADS = 12
"""Of attention in ``bert`` and ``gpt2``; the encoder has one for each 64 features."""


@dataclass(frozen=True)
class Timed:
    """A model and a batch size.

    Attributes
    ----------
    name : str
    model : str
        ``resnet18`` or ``resnet50``, as torchvision has them; ``bert`` or ``gpt2``, as
        `graphgrad.models` has them; or ``encoder``, a transformer.
    batch : int
    sizes : dict of str to int
        Of a transformer, as its builder names them.
    image : int
        Height and width of the images of a residual network.
    """

    name: str
    model: str
    batch: int
    sizes: dict[str, int] = field(default_factory=dict)
    image: int = 224

    @property
    def is_image(self) -> bool:
        return not self.sizes

    def data(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the inputs by name and the labels, int64 (N,): images (N, 3, H, W) or tokens.

        There is a label for each token of ``gpt2``, one behind the other.
        """
        generator = np.random.default_rng(SEED)
        length = self.sizes.get("length") or self.sizes.get("sequence", 0)
        rows = self.batch * (length if self.model == "gpt2" else 1)
        labels = generator.integers(0, self.sizes.get("classes", CLASSES), rows)
        if self.is_image:
            shape = (self.batch, 3, self.image, self.image)
            return {"input": generator.standard_normal(shape, dtype=np.float32)}, labels
        name = "tokens" if self.model == "encoder" else "input"
        words = self.sizes.get("words") or self.sizes.get("classes", WORDS)
        return {name: generator.integers(0, words, (self.batch, length))}, labels


_ENCODER = {"layers": 6, "width": 512, "length": 128}
_BERT = {"sequence": 384, "words": 30522, "classes": 2}
_GPT2 = {"length": 1024, "classes": 50257}
_TINY = {"layers": 1, "width": 64, "length": 16}

TIMED = {
    timed.name: timed
    for timed in (
        Timed("resnet50-64", "resnet50", 64),
        Timed("resnet18-64", "resnet18", 64),
        Timed("bert-32", "bert", 32, _BERT),
        Timed("gpt2-4", "gpt2", 4, _GPT2),
        Timed("encoder-64", "encoder", 64, _ENCODER),
        Timed("resnet50-256", "resnet50", 256),
        Timed("encoder-tiny", "encoder", 2, _TINY),
    )
}
FIRST = ["resnet50-64"]
"""What is timed unless asked otherwise: a call of ten minutes reaches no more."""


def steps_for(kind: str) -> list[str]:
    """Those of `OURS` that there are on a kind of device."""
    return OURS if kind == "cuda" else ["graphgrad fp32", "graphgrad bf16"]


def step_name(timed: str, contender: str) -> str:
    """The name of the exported step with which a contender of ours trains a timed model."""
    return ".".join([timed, *contender.split()[1:]])


def draw_weights(
    params: Iterable[Mapping[str, object]], state: Iterable[Mapping[str, object]]
) -> dict[str, np.ndarray]:
    """Return values for parameters and statistics, each given by its name and shape, float32.

    Matrices and convolutions have variance 2 / fan-in (He et al. 2015), embeddings 0.02²; scales
    and variances are one, shifts and means zero.
    """
    generator = np.random.default_rng(SEED)
    return {str(each["name"]): _draw(each, generator) for each in (*params, *state)}


def _draw(described: Mapping[str, object], generator: np.random.Generator) -> np.ndarray:
    name, shape = str(described["name"]), tuple(described["shape"])
    if len(shape) > 1:
        is_embedding = name in ("words.weight", "places.weight", "positions.weight")
        deviation = 0.02 if is_embedding else np.sqrt(2.0 / np.prod(shape[1:]))
        return generator.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
    return np.full(shape, name.endswith((".weight", ".running_var")), np.float32)
