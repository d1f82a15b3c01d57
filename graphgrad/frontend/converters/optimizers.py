"""Steps of optimizers: the operators of ONNX's preview training domain.

Inputs are the rate r, the number of steps before this one and, for each optimized tensor x, its
gradient g and the state of the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tvm import relax

from ...ir.tensor import Tensor
from ...ops import functional as op
from .node import Node, converter

_DOMAIN = "ai.onnx.preview.training"


@converter("Adagrad", domain=_DOMAIN)
def adagrad(node: Node) -> tuple[Tensor, ...]:
    """x − r g / (√h + ε), where h sums the squares of the gradients g."""
    rate, count = _rate_and_count(node)
    rate = rate / (1.0 + count * node.attribute("decay_factor", 0.0))

    def step(x: Tensor, gradient: Tensor, squares: Tensor) -> tuple[Tensor, ...]:
        gradient = _add_weight_decay(node, x, gradient)
        squares = squares + gradient * gradient
        return x - rate * gradient / (op.sqrt(squares) + _epsilon(node)), squares

    return _stepped(node, step, 3)


@converter("Adam", domain=_DOMAIN)
def adam(node: Node) -> tuple[Tensor, ...]:
    """x − r v / (√h + ε), where v and h are decaying means of the gradients and their squares."""
    alpha, beta = node.attribute("alpha", 0.9), node.attribute("beta", 0.999)
    rate, count = _rate_and_count(node)
    # The standard corrects the bias of the means from the second step on; at step 0 this is 0 / 0.
    unbiased = rate * op.sqrt(1.0 - _power(beta, count)) / (1.0 - _power(alpha, count))
    rate = op.where(op.greater(count, 0.0), unbiased, rate)

    def step(
        x: Tensor, gradient: Tensor, mean: Tensor, squares: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradient = _add_weight_decay(node, x, gradient)
        mean = alpha * mean + (1.0 - alpha) * gradient
        squares = beta * squares + (1.0 - beta) * gradient * gradient
        updated = x - rate * mean / (op.sqrt(squares) + _epsilon(node))
        return (1.0 - node.attribute("norm_coefficient_post", 0.0)) * updated, mean, squares

    return _stepped(node, step, 4)


@converter("Momentum", domain=_DOMAIN)
def momentum(node: Node) -> tuple[Tensor, ...]:
    """x − r v, where v sums decaying gradients; with Nesterov's form, x − r (g + α v)."""
    alpha, is_nesterov = node.attribute("alpha"), node.attribute("mode") == b"nesterov"
    rate, count = _rate_and_count(node)
    is_later_step = op.greater(count, 0.0).astype(rate.dtype)
    # The standard's β, the weight of a gradient in the velocity, is 1 in the first step.
    gradient_weight = 1.0 + (node.attribute("beta") - 1.0) * is_later_step

    def step(x: Tensor, gradient: Tensor, velocity: Tensor) -> tuple[Tensor, ...]:
        gradient = _add_weight_decay(node, x, gradient)
        velocity = alpha * velocity + gradient_weight * gradient
        direction = gradient + alpha * velocity if is_nesterov else velocity
        return x - rate * direction, velocity

    return _stepped(node, step, 3)


def _rate_and_count(node: Node) -> tuple[Tensor, Tensor]:
    rate = node.tensor(0).astype(node.tensor(2).dtype)  # that of the tensors, which all share one
    return rate, node.tensor(1).astype(rate.dtype)


def _power(base: float, exponent: Tensor) -> Tensor:
    base_tensor = exponent.emitter.lift(relax.const(base, exponent.dtype))
    return op.power(base_tensor, exponent)


def _epsilon(node: Node) -> float:
    return node.attribute("epsilon", 1e-6)


def _add_weight_decay(node: Node, x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient with that of half the squared norm of x."""
    return node.attribute("norm_coefficient", 0.0) * x + gradient


def _stepped(node: Node, step: Callable[..., tuple[Tensor, ...]], width: int) -> tuple[Tensor, ...]:
    """Apply a step to every optimized tensor; all first results come first, then all second."""
    tensors = [node.tensor(index) for index in range(2, len(node.inputs))]
    count = len(tensors) // width
    # Inputs are all tensors, then all gradients, then each state of all.
    results = [step(*tensors[number::count]) for number in range(count)]
    return tuple(_flattened(zip(*results, strict=True)))


def _flattened(rows: Iterator[tuple[Tensor, ...]]) -> Iterator[Tensor]:
    for row in rows:
        yield from row
