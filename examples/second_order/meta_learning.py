"""Learning to learn: weights from which one step of gradient descent goes far.

Of each task (a sine of its own amplitude and phase) one step is made from the common weights w, and
the loss at w′ = w − α · g(w) is what counts (C. Finn et al., "Model-Agnostic Meta-Learning for Fast
Adaptation of Deep Networks", 2017, algorithm 2). Its gradient by w goes through the step:
g′ − α · H(w) g′, where g′ is the gradient at w′. That is one product with the Hessian a task.

    python examples/second_order/meta_learning.py
"""

from __future__ import annotations

import numpy as np

import graphgrad as gg
from graphgrad import models

INNER_RATE = 0.02
OUTER_RATE = 0.02
TASKS = 4

Task = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]
"""What is learned from, and what is then asked: inputs and targets."""


class MetaLearner:
    """A network whose weights are a good place to start from."""

    def __init__(self, model: gg.Model):
        self.model = model
        self._gradients = gg.value_and_grad(model, loss="mse")
        self._product = gg.hvp(model, loss="mse")

    def step(self, tasks: list[Task]) -> float:
        """Make a step over some tasks; return their mean loss after adaptation, before it."""
        weights = {name: self.model.params[name] for name in self.model.trainable()}
        total = {name: np.zeros_like(weight) for name, weight in weights.items()}
        losses = []
        for known, asked in tasks:
            loss, adapted = self._adapted(weights, known, asked)
            self.model.params.update(weights)
            through_step = self._product(known, adapted)[2]
            for name in weights:
                total[name] += (adapted[name] - INNER_RATE * through_step[name]) / len(tasks)
            losses.append(loss)
        for name, weight in weights.items():
            self.model.params[name] = weight - OUTER_RATE * total[name]
        return float(np.mean(losses))

    def _adapted(self, weights, known, asked) -> tuple[float, dict[str, np.ndarray]]:
        """The loss and the gradients behind one step on a task."""
        gradients = self._gradients(known)[1]
        for name, weight in weights.items():
            self.model.params[name] = weight - INNER_RATE * gradients[name]
        outputs, adapted = self._gradients(asked)
        return float(outputs["loss"]), adapted


def draw_tasks(steps: int, dtype: str = "float32", seed: int = 0):
    """Yield some tasks for each step."""
    random = np.random.default_rng(seed)

    def points(amplitude: float, phase: float) -> dict[str, np.ndarray]:
        x = random.uniform(-3, 3, (10, 1))
        y = amplitude * np.sin(x + phase)
        return {"input": x.astype(dtype), "targets": y.astype(dtype)}

    def task() -> Task:
        amplitude, phase = random.uniform(0.5, 2.0), random.uniform(0, np.pi)
        return points(amplitude, phase), points(amplitude, phase)

    for _ in range(steps):
        yield [task() for _ in range(TASKS)]


def network() -> gg.Model:
    """The network that learns."""
    return gg.from_onnx(models.mlp((1, 32, 32, 1), activation="silu", seed=1))


def main() -> None:
    """Train, and print the losses."""
    learner = MetaLearner(network())
    losses = [learner.step(tasks) for tasks in draw_tasks(400)]
    for step in range(0, 400, 50):
        print(f"step {step:3}: loss after one step {np.mean(losses[step : step + 50]):.4f}")


if __name__ == "__main__":
    main()
