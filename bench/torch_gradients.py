"""Gradients of torch's twin of an ONNX file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import torch

from graphgrad.models.torch_twin import twin


def gradients(
    proto: onnx.ModelProto, names: Sequence[str], batches: Sequence[tuple[np.ndarray, np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    """Return the gradients of the cross entropy by parameter, for each batch.

    Parameters
    ----------
    proto : onnx.ModelProto
        With an input (N, …) and scores (N, classes).
    names : sequence of str
        Of all parameters, in the file.
    batches : sequence of (array, array)
        Inputs, whose dtype is that of the computation, and labels.
    """
    dtype = torch.from_numpy(batches[0][0]).dtype
    module = twin(proto).to(dtype)
    used = dict.fromkeys(name for node in proto.graph.node for name in node.input if name in names)
    found = []
    for inputs, labels in batches:
        module.zero_grad()
        scores = module(torch.from_numpy(inputs))
        torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels)).backward()
        arrays = [parameter.grad.numpy().copy() for parameter in module.parameters()]
        found.append(dict(zip(used, arrays, strict=True)))
    return found
