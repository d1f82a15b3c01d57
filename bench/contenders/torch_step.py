"""PyTorch, eager or compiled, in either memory format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch_networks import network_of
from workload import LEARNING_RATE, MOMENTUM, Workload

from graphgrad.models.torch_step import training_step
from graphgrad.models.torch_twin import twin

INCLUDES = "forward, loss, backward, statistics, fused SGD momentum"


def prepare(workload: Workload, threads: int, **options: Any) -> Callable[[], float]:
    """Return the step of the model's twin, with the workload's weights.

    Parameters
    ----------
    workload : Workload
    threads : int
    **options
        Of `training_step`.
    """
    torch.set_num_threads(threads)
    proto = workload.proto()
    model = network_of(proto) or twin(proto)
    return training_step(model, *workload.batch(), LEARNING_RATE, MOMENTUM, **options)
