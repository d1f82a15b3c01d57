"""PyTorch, eager, contiguous NCHW."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy
from torch_models import residual_network
from workload import LEARNING_RATE, MOMENTUM, Workload

INCLUDES = "eager NCHW: forward, loss, backward, statistics, fused SGD momentum"


def prepare(workload: Workload, threads: int) -> Callable[[], float]:
    """Return the step of the model's twin, with the workload's weights."""
    torch.set_num_threads(threads)
    model = residual_network(
        {name: torch.from_numpy(array) for name, array in workload.weights().items()}
    ).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)
    images, labels = (torch.from_numpy(array) for array in workload.batch())

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
