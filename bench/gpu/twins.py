"""The same networks in torch, by the names of `families` and `timed`; needs torch alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

import encoder
import numpy as np
import paths  # noqa: F401 (where `tests` and `torch_models` are found)
import torch
from accuracy import Batch, Trajectory
from timed import CLASSES, HEADS
from torch import nn
from torch.nn.functional import cross_entropy
from torch_models import residual_network

from models.torch_transformers import TRANSFORMERS, transformer
from tests import torch_nets
from tests.torch_resnet import resnet

DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}
SMALL = {"width": 8, "stem": "imagenet", "classes": 10}
WHOLE = {"width": 64, "stem": "imagenet", "classes": CLASSES}


def family(name: str, weights: Mapping[str, np.ndarray]) -> nn.Module:
    """Return a family's network at small width, in training form, with the given values.

    Parameters
    ----------
    name : str
        Of `families`.
    weights : mapping of str to array
        Parameters and statistics by name; their dtype becomes the network's. Constants of the file
        (see `is_constant`) have no place in torch.
    """
    tensors = _tensors({key: array for key, array in weights.items() if not is_constant(key)})
    if name == "resnet_digits":
        return residual_network(tensors).to(_dtype(tensors)).train()
    builders = {"mlp": _mlp, "lenet": _lenet}
    for depth in DEPTHS:
        builders[depth] = partial(_residual, depth, **SMALL)
    build = builders.get(name) or getattr(torch_nets, name)
    return _filled(build(), tensors)


def timed(model: str, weights: Mapping[str, np.ndarray], **sizes: int) -> nn.Module:
    """Return a network of `timed` at full width, in training form, with the given values."""
    tensors = _tensors(weights)
    if model in TRANSFORMERS:
        return transformer(model, tensors, HEADS)
    build = partial(_residual, model, **WHOLE) if model in DEPTHS else encoder.Encoder
    return _filled(build(**sizes), tensors)


def is_constant(name: str) -> bool:
    """Return whether torch's exporter made a parameter of what is a constant in torch.

    It names those by their place in the network, with a slash in front.
    """
    return name.startswith("/")


def trajectory(
    net: nn.Module,
    batches: list[Batch],
    rate: float,
    momentum: float,
    device: str,
    is_half: bool = False,
) -> Trajectory:
    """Train a network by SGD with momentum, a step a batch, and return what became of it.

    With `is_half`, under autocast to bfloat16.
    Running variances are those of the population, as in ONNX, not torch's unbiased ones.
    """
    net.to(device)
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.register_forward_pre_hook(_keep_variance)
            module.register_forward_hook(_population_variance)
    start = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=momentum)
    losses = []
    for inputs, labels in batches:
        given = [torch.from_numpy(array).to(device) for array in inputs.values()]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=is_half):
            loss = cross_entropy(net(*given), torch.from_numpy(labels).to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    params = dict(net.named_parameters())
    state = {
        name: tensor
        for name, tensor in net.named_buffers()
        if name.endswith(("running_mean", "running_var"))
    }
    buffers = {name: optimizer.state[tensor]["momentum_buffer"] for name, tensor in params.items()}
    return Trajectory(
        losses,
        {
            "params": {name: _double(p) - _double(start[name]) for name, p in params.items()},
            "state": {name: _double(s) - _double(start[name]) for name, s in state.items()},
            "momentum": {name: _double(buffer) for name, buffer in buffers.items()},
        },
    )


def _mlp() -> nn.Module:
    layers = [("fc1", nn.Linear(64, 32)), ("relu", nn.ReLU()), ("fc2", nn.Linear(32, 10))]
    return nn.Sequential(OrderedDict(layers))


def _lenet() -> nn.Module:
    layers: list[tuple[str, nn.Module]] = []
    for index, conv in enumerate((nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)), start=1):
        layers += [(f"conv{index}", conv), (f"relu{index}", nn.ReLU())]
        layers.append((f"pool{index}", nn.MaxPool2d(2)))
    layers += [("flatten", nn.Flatten()), ("fc1", nn.Linear(400, 120)), ("relu3", nn.ReLU())]
    layers += [("fc2", nn.Linear(120, 84)), ("relu4", nn.ReLU()), ("fc3", nn.Linear(84, 10))]
    return nn.Sequential(OrderedDict(layers))


def _residual(name: str, **options: object) -> nn.Module:
    return resnet(DEPTHS[name], name == "resnet50", **options)


def _filled(net: nn.Module, tensors: dict[str, torch.Tensor]) -> nn.Module:
    """Give a network the values, each of which must have its place."""
    net.to(_dtype(tensors))
    missing, unexpected = net.load_state_dict(tensors, strict=False)
    absent = [name for name in missing if not name.endswith("num_batches_tracked")]
    if absent or unexpected:
        raise RuntimeError(f"not the same network: missing {absent}, unexpected {unexpected}")
    return net.train()


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _dtype(tensors: Mapping[str, torch.Tensor]) -> torch.dtype:
    return next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())


def _keep_variance(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    module.variance_before = module.running_var.clone()


def _population_variance(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
) -> None:
    count = inputs[0].numel() // inputs[0].shape[1]
    kept = (1 - module.momentum) * module.variance_before
    # Not in place: the backward pass still holds the tensor.
    module.running_var = kept + (module.running_var - kept) * (count - 1) / count


def _double(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
