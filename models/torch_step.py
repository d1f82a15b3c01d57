"""A training step in PyTorch at its best: fused SGD with momentum, no gradient kept.

One batch, again and again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy


def training_step(
    model: nn.Module,
    inputs: np.ndarray,
    labels: np.ndarray,
    learning_rate: float,
    momentum: float,
    channels_last: bool = False,
    compiled: bool = False,
    precision: str = "float32",
) -> Callable[[], float]:
    """A function that makes a step on one batch and returns the loss before it.

    Parameters
    ----------
    model : torch.nn.Module
        From the inputs to scores (N, classes) or (N, classes, …).
    inputs, labels : array
        Labels (N) or (N, …), int64.
    learning_rate, momentum : float
        Of SGD.
    channels_last : bool
        How weights and images lie in memory; else as NCHW. What has no height lies in one way only.
    compiled : bool
        Whether forward and backward pass go through `torch.compile`.
    precision : str
        That of `torch.autocast`; in float16 the loss is scaled by a `GradScaler`.
    """
    order = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(memory_format=order)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum, fused=True)
    x, targets = torch.from_numpy(inputs), torch.from_numpy(labels)
    if x.ndim == 4:  # else there are no channels to put last
        x = x.contiguous(memory_format=order)
    forward = torch.compile(model) if compiled else model
    mixed = torch.autocast(
        "cpu", getattr(torch, precision), enabled=precision != "float32", cache_enabled=True
    )
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "float16")

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with mixed:
            loss = cross_entropy(forward(x), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
