"""The least that anything takes which reads its arguments: PyTorch copies them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from loop_workloads import arrays_of
from workload import Workload

INCLUDES = "each argument copied once"


def prepare(workload: Workload, threads: int) -> Callable[[], None]:
    """Return the copy."""
    torch.set_num_threads(threads)
    arrays = [torch.from_numpy(array) for array in arrays_of(workload).values()]
    copies = [torch.empty_like(array) for array in arrays]

    def copy() -> None:
        for array, target in zip(arrays, copies, strict=True):
            target.copy_(array)

    return copy
