"""What every contender trains: a model, its initial weights and one batch, as files.

Nothing here needs a compiler or torch, so that reading a workload adds nothing to a contender's
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

LEARNING_RATE = 0.01
MOMENTUM = 0.9


@dataclass(frozen=True)
class Workload:
    """A folder with ``model.onnx``, in training form with a fixed batch, and ``batch.npz``."""

    folder: Path

    def proto(self) -> onnx.ModelProto:
        """Return the model, with its initial weights."""
        return onnx.load(self.folder / "model.onnx")

    def weights(self) -> dict[str, np.ndarray]:
        """Return the initial weights and statistics by name."""
        return {
            tensor.name: numpy_helper.to_array(tensor).copy()
            for tensor in self.proto().graph.initializer
        }

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return examples, and labels, int64.

        Images (N, C, H, W) and embeddings (N, S, W) are float32, tokens (N, S) int64; there are
        labels (N,), or those of the pixels or of the tokens.
        """
        with np.load(self.folder / "batch.npz") as arrays:
            return arrays["images"], arrays["labels"]
