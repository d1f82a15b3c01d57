"""Sharpness-aware minimization: the gradient where the loss is worst nearby.

A step goes up first, by ρ · g / ‖g‖, and takes the gradient there (P. Foret et al.,
"Sharpness-Aware Minimization for Efficiently Improving Generalization", 2021, algorithm 1). How
sharp the minimum is that it finds, the largest eigenvalue of the Hessian, is told by power
iteration, each of which is one product with the Hessian.

    python examples/second_order/sharpness_aware.py
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import graphgrad as gg
from graphgrad import models

RADIUS = 0.5
RATE = 0.1

Weights = dict[str, np.ndarray]
Batch = Mapping[str, np.ndarray]


class SharpnessAware:
    """Training of a classifier; with a radius of 0 it is plain gradient descent."""

    def __init__(self, model: gg.Model, radius: float = RADIUS):
        self.model = model
        self._radius = radius
        self._gradients = gg.value_and_grad(model, loss="cross_entropy")
        self._product = gg.hvp(model, loss="cross_entropy")

    def step(self, batch: Batch) -> float:
        """Make a step; return the loss before it."""
        weights = {name: self.model.params[name] for name in self.model.trainable()}
        outputs, uphill = self._gradients(batch)
        scale = self._radius / norm_of(uphill)
        for name, weight in weights.items():
            self.model.params[name] = weight + scale * uphill[name]
        worst = self._gradients(batch)[1]
        for name, weight in weights.items():
            self.model.params[name] = weight - RATE * worst[name]
        return float(outputs["loss"])

    def sharpness(self, batch: Batch, iterations: int = 30) -> float:
        """The largest eigenvalue of the Hessian."""
        random = np.random.default_rng(0)
        vectors = {
            name: random.standard_normal(array.shape).astype(array.dtype)
            for name, array in self.model.params.items()
        }
        for _ in range(iterations):
            scale = 1 / norm_of(vectors)
            vectors = self._product(batch, {name: scale * v for name, v in vectors.items()})[2]
        return norm_of(vectors)


def norm_of(arrays: Weights) -> float:
    """The norm of all arrays together."""
    return sum(float((array**2).sum()) for array in arrays.values()) ** 0.5


def batches(steps: int, dtype: str = "float32", seed: int = 0):
    """Yield points of the plane in three noisy clusters, with their labels."""
    random = np.random.default_rng(seed)
    centers = np.array([[0.0, 1.0], [-0.9, -0.5], [0.9, -0.5]])
    for _ in range(steps):
        labels = random.integers(0, 3, 48)
        points = centers[labels] + 0.4 * random.standard_normal((48, 2))
        yield {"input": points.astype(dtype), "targets": labels}


def network() -> gg.Model:
    """The classifier."""
    return gg.from_onnx(models.mlp((2, 32, 3), activation="silu", seed=1))


def main() -> None:
    """Train plainly and sharpness-aware, and print where each ended."""
    (test,) = batches(1, seed=1)
    for label, radius in (("plain", 0.0), ("sharpness-aware", RADIUS)):
        training = SharpnessAware(network(), radius)
        losses = [training.step(batch) for batch in batches(300)]
        sharpness = training.sharpness(test)
        print(f"{label:15}: loss {np.mean(losses[-50:]):.4f}, largest eigenvalue {sharpness:.3f}")


if __name__ == "__main__":
    main()
