"""Layers of PyTorch in eager mode; images are channels_last tensors, unless the kind is NCHW."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from layer_cases import LayerCase
from torch.nn import functional as F

INCLUDES = "torch.nn.functional; with gradients, backward into new tensors"

APPLY: Mapping[str, Callable[..., torch.Tensor]] = {
    "relu": torch.relu,
    "batch norm": lambda x, g, o: F.batch_norm(x, None, None, g, o, True),
    "batch norm NCHW": lambda x, g, o: F.batch_norm(x, None, None, g, o, True),
    "group norm": lambda x, g, o: F.group_norm(x, 8, g, o),
    "group norm NCHW": lambda x, g, o: F.group_norm(x, 8, g, o),
    "layer norm": lambda x, g, o: F.layer_norm(x, g.shape, g, o),
    "softmax": lambda x: torch.softmax(x, -1),
    "log softmax": lambda x: torch.log_softmax(x, -1),
    "gelu": F.gelu,
    "silu": F.silu,
    "max pool 3/2": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max pool 2/2": lambda x: F.max_pool2d(x, 2),
    "average pool 2/2": lambda x: F.avg_pool2d(x, 2),
    "global average pool": lambda x: F.adaptive_avg_pool2d(x, 1),
    "resize bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "resize nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
}


def prepare(case: LayerCase, threads: int) -> tuple[Callable[[], Any], Callable[[], np.ndarray]]:
    """Return what runs a case, and what returns its values: the result, or the data's gradient.

    Parameters
    ----------
    case : LayerCase
    threads : int
    """
    torch.set_num_threads(threads)
    is_last = len(case.work.shape) == 4 and not case.work.kind.endswith("NCHW")
    apply, is_training = APPLY[case.work.kind], case.part == "training"
    arrays = [torch.from_numpy(array) for array in case.inputs()]
    if is_last:  # channels_last: the same memory, other axes
        arrays = [a.permute(0, 3, 1, 2) if a.ndim == 4 else a for a in arrays]
    cotangent = arrays.pop() if is_training else None
    inputs = [array.requires_grad_(is_training) for array in arrays]

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return apply(*inputs)

    def training() -> torch.Tensor:
        for one in inputs:
            one.grad = None
        apply(*inputs).backward(cotangent)
        assert inputs[0].grad is not None
        return inputs[0].grad

    run = training if is_training else forward

    def values() -> np.ndarray:
        found = run()
        return (found.permute(0, 2, 3, 1) if is_last else found).contiguous().numpy()

    return run, values
