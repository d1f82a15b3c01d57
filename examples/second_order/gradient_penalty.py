"""A critic with a gradient penalty, and a generator: Wasserstein GAN on points of the plane.

The critic's loss is mean D(fake) − mean D(real) + λ · mean (‖∂D/∂x‖ − 1)² at points between them
(I. Gulrajani et al., "Improved Training of Wasserstein GANs", 2017, algorithm 1). The penalty is a
function of a gradient, so its own gradient by the weights is second order: with v = ∂penalty/∂g it
is ∂²D/∂w∂x · v, one product with the Hessian.

    python examples/second_order/gradient_penalty.py
"""

from __future__ import annotations

import numpy as np

import graphgrad as gg
from graphgrad import models

PENALTY = 10.0
RATE = 0.05
BATCH = 32


class Critic:
    """A network from points to scores, and the loss that it is trained by."""

    def __init__(self, model: gg.Model):
        self.model = model
        (self._input,), self._weights = model.inputs, model.trainable()
        self._gradients = gg.value_and_grad(model, wrt=[self._input, *self._weights])
        self._product = gg.hvp(model, wrt=[self._input, *self._weights])

    def step(self, fake: np.ndarray, real: np.ndarray, mix: np.ndarray) -> float:
        """Make a step of gradient descent; return the loss before it."""
        count = len(fake)
        ones = np.ones((count, 1), fake.dtype)
        sign = np.concatenate([ones, -ones]) / count
        outputs, by_scores = self._gradients(np.concatenate([fake, real]), sign)
        scores = next(iter(outputs.values()))

        between = mix * fake + (1 - mix) * real
        slope = self._gradients(between, ones)[1][self._input]
        norm = np.sqrt((slope**2).sum(1, keepdims=True))
        penalty = PENALTY * ((norm - 1) ** 2).mean()
        vector = 2 * PENALTY / count * (norm - 1) / norm * slope
        by_penalty = self._product(between, {self._input: vector}, ones)[2]

        for name in self._weights:
            self.model.params[name] = self.model.params[name] - RATE * (
                by_scores[name] + by_penalty[name]
            )
        return float((sign * scores).sum() + penalty)

    def slope(self, points: np.ndarray) -> np.ndarray:
        """The gradient of the mean score by the points."""
        cotangent = np.full((len(points), 1), 1 / len(points), points.dtype)
        return self._gradients(points, cotangent)[1][self._input]


class Generator:
    """A network from noise to points; the critic tells it in which direction they score more."""

    def __init__(self, model: gg.Model):
        self.model = model
        self._weights = model.trainable()
        self._gradients = gg.value_and_grad(model, wrt=self._weights)

    def points(self, noise: np.ndarray) -> np.ndarray:
        """The points that the network makes of noise."""
        zeros = np.zeros((len(noise), 2), noise.dtype)
        return next(iter(self._gradients(noise, zeros)[0].values()))

    def step(self, noise: np.ndarray, critic: Critic) -> None:
        """Make a step of gradient descent on − mean D(points)."""
        by_points = -critic.slope(self.points(noise))
        gradients = self._gradients(noise, by_points)[1]
        for name in self._weights:
            self.model.params[name] = self.model.params[name] - RATE * gradients[name]


def batches(steps: int, dtype: str, seed: int = 0):
    """Yield noise, real points (a ring) and where between fake and real the penalty is taken."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        angle = random.uniform(0, 2 * np.pi, (BATCH, 1))
        real = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
        noise, mix = random.standard_normal((BATCH, 2)), random.uniform(size=(BATCH, 1))
        yield noise.astype(dtype), real.astype(dtype), mix.astype(dtype)


def train(critic: Critic, generator: Generator, steps: int, dtype: str = "float32") -> list[float]:
    """Train both; return the critic's losses."""
    losses = []
    for noise, real, mix in batches(steps, dtype):
        losses.append(critic.step(generator.points(noise), real, mix))
        generator.step(noise, critic)
    return losses


def networks() -> tuple[gg.Model, gg.Model]:
    """The critic's model and the generator's."""
    critic = models.mlp((2, 32, 32, 1), activation="silu", seed=1)
    generator = models.mlp((2, 32, 2), activation="silu", seed=2)
    return gg.from_onnx(critic), gg.from_onnx(generator)


def main() -> None:
    """Train both, and print the critic's losses."""
    critic, generator = networks()
    losses = train(Critic(critic), Generator(generator), 200)
    for step in range(0, 200, 20):
        print(f"step {step:3}: critic {np.mean(losses[step : step + 20]):.4f}")


if __name__ == "__main__":
    main()
