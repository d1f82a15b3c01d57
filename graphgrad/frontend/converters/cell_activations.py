"""The activation functions that recurrent layers name in their attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...errors import ModelError
from ...ir.tensor import Tensor
from ...ops import functional as op
from ...ops.losses import softplus as softplus_of
from .activation import exponential_below_zero, unit_ramp
from .node import Node

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Kind:
    """A function of x, α and β.

    Attributes
    ----------
    function : callable
    alpha, beta : float or None
        Their defaults; None where the function has no such parameter.
    """

    function: Callable[[Tensor, float, float], Tensor]
    alpha: float | None = None
    beta: float | None = None


_KINDS = {
    "affine": _Kind(lambda x, alpha, beta: alpha * x + beta, 1.0, 0.0),
    "elu": _Kind(lambda x, alpha, _: exponential_below_zero(x, alpha, 1.0), 1.0),
    "hardsigmoid": _Kind(lambda x, alpha, beta: unit_ramp(alpha * x + beta), 0.2, 0.5),
    "leakyrelu": _Kind(lambda x, alpha, _: op.where(op.greater(x, 0.0), x, alpha * x), 0.01),
    "relu": _Kind(lambda x, *_: op.relu(x)),
    "scaledtanh": _Kind(lambda x, alpha, beta: alpha * op.tanh(beta * x), 1.0, 1.0),
    "sigmoid": _Kind(lambda x, *_: op.sigmoid(x)),
    "softplus": _Kind(lambda x, *_: softplus_of(x)),
    "softsign": _Kind(lambda x, *_: x / (1.0 + op.abs(x))),
    "tanh": _Kind(lambda x, *_: op.tanh(x)),
    "thresholdedrelu": _Kind(lambda x, alpha, _: op.where(op.less_equal(x, alpha), 0.0, x), 1.0),
}


def activations_of(node: Node, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
    """The functions of each direction; those of gates with `clip` on their arguments.

    As in onnxruntime, `clip` is not for the third, which an LSTM applies to its cell state.

    Parameters
    ----------
    node : Node
    defaults : sequence of str
        The names of the activations of one direction, where the node names none.
    directions : int

    Raises
    ------
    ModelError
        Their number is wrong, or one is unknown.
    """
    names = [str(name, "utf-8") for name in node.attribute("activations", ())]
    names = names or [*defaults] * directions
    if len(names) != len(defaults) * directions:
        raise ModelError(
            f"it names {len(names)} activations: {len(defaults)} for each of its {directions} "
            "direction(s) are needed"
        )
    # The lists have entries for those activations alone that have the parameter, in their order.
    alphas, betas = (iter(node.attribute(f"activation_{p}", ())) for p in ("alpha", "beta"))
    bound = node.attribute("clip", None)
    functions = [_function(name, alphas, betas) for name in names]
    if bound is not None:
        functions = [
            _clipped(function, bound) if number % len(defaults) < 2 else function
            for number, function in enumerate(functions)
        ]
    return [
        functions[first : first + len(defaults)]
        for first in range(0, len(functions), len(defaults))
    ]


def _function(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    """A function by name; it takes the next α and β of the node, if it has such parameters."""
    kind = _KINDS.get(name.lower())
    if kind is None:
        raise ModelError(f"its activation {name!r} is unknown; there are {sorted(_KINDS)}")
    alpha = 0.0 if kind.alpha is None else next(alphas, kind.alpha)
    beta = 0.0 if kind.beta is None else next(betas, kind.beta)
    return lambda x: kind.function(x, alpha, beta)


def _clipped(function: Activation, bound: float) -> Activation:
    return lambda x: function(op.clip(x, -bound, bound))
