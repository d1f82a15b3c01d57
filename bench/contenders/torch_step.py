"""PyTorch, eager or compiled, in either memory format."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy
from torch_networks import network_of
from workload import LEARNING_RATE, MOMENTUM, Workload

from graphgrad.models.torch_twin import twin

INCLUDES = "forward, loss, backward, statistics, fused SGD momentum"


def prepare(
    workload: Workload,
    threads: int,
    channels_last: bool = False,
    compiled: bool = False,
    precision: str = "float32",
) -> Callable[[], float]:
    """Return the step of the model's twin, with the workload's weights.

    Parameters
    ----------
    workload : Workload
    threads : int
    channels_last : bool
        How weights and images lie in memory; else as NCHW. Embeddings lie in one way only.
    compiled : bool
        Whether forward and backward pass go through `torch.compile`.
    precision : str
        That of `torch.autocast`; in float16 the loss is scaled by a `GradScaler`.
    """
    torch.set_num_threads(threads)
    order = torch.channels_last if channels_last else torch.contiguous_format
    proto = workload.proto()
    model = (network_of(proto) or twin(proto)).to(memory_format=order)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)
    images, labels = (torch.from_numpy(array) for array in workload.batch())
    if images.ndim == 4:  # else there are no channels to put last
        images = images.contiguous(memory_format=order)
    forward = torch.compile(model) if compiled else model
    mixed = torch.autocast(
        "cpu", getattr(torch, precision), enabled=precision != "float32", cache_enabled=True
    )
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "float16")

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with mixed:
            loss = cross_entropy(forward(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
