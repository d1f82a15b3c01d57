"""`as_torch`: a model as a module of PyTorch."""

from __future__ import annotations

from typing import Any

from ..frontend.model import Model
from ..precision.choice import Precision
from ..train.inputs import input_types
from .required import require


def as_torch(
    model: Model,
    *,
    target: Any = "llvm",
    rules: str = "auto",
    winograd: bool = True,
    precision: str | Precision = "float32",
) -> Any:
    """A model as a ``torch.nn.Module``, with gradients to any order.

    Parameters
    ----------
    model : Model
        Its values are copied.
    target : str, dict or Target
        A processor.
    rules : "auto" or "derived"
        As of `graphgrad.vjp`.
    winograd : bool
        As of `graphgrad.compile`.
    precision : str or Precision
        As of `train_step`.

    Returns
    -------
    torch.nn.Module
        ``module(*inputs)`` returns the outputs: a tensor, or a tuple of several. Parameters and
        statistics have their ONNX names, whose dots make submodules; ``onnx_names`` says where
        PyTorch refuses one. What trains by default requires a gradient. ``train()`` and ``eval()``
        choose the form of batch norms and dropouts; a call in training form updates statistics, and
        draws the seed of dropouts from PyTorch's generator.

    Raises
    ------
    ArgumentError
        PyTorch is missing or too old, it is no `Model`, or a value is unknown.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    TargetError
        There is no such target.

    Examples
    --------
    >>> module = gg.as_torch(gg.from_onnx("model.onnx"))
    >>> optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    """
    require("torch")
    input_types(model)  # raises if it is no model
    from .torch_module import TorchModel  # noqa: PLC0415

    options = {"target": target, "rules": rules, "winograd": winograd, "precision": precision}
    return TorchModel(model, options)
