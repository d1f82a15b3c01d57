"""The twin of an ONNX file in torch: a module whose code is what one would have written by hand.

The file's nodes become modules and functions of torch in a `torch.fx` graph, which generates an
ordinary `forward`; so torch runs, and compiles, exactly the network of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import fx, nn

from .torch_transformers import TRANSFORMERS, transformer

Attributes = Mapping[str, Any]
Weights = Mapping[str, torch.Tensor]


def twin(proto: onnx.ModelProto) -> nn.Module:
    """The network of a file of this package, with its weights.

    Parameters
    ----------
    proto : onnx.ModelProto
        One input; batch normalization in either form.

    Returns
    -------
    torch.nn.Module
        In training mode; transformers as `torch_transformers` has them.

    Raises
    ------
    ValueError
        The file has an operator that no layer stands for here, or weights of another network.
    """
    constants = _constants(proto)
    if proto.graph.name in TRANSFORMERS:
        return _transformer(proto, constants)
    graph = fx.Graph()
    layers: dict[str, nn.Module] = {}
    values = {proto.graph.input[0].name: graph.placeholder("input")}
    for node in proto.graph.node:
        if node.op_type == "Constant":
            continue
        if node.op_type not in LAYERS:
            raise ValueError(f"no layer stands for the ONNX operator {node.op_type}")
        weights = [constants[name] for name in node.input if name in constants]
        attributes = _attributes(node, bool(weights))
        layer = LAYERS[node.op_type](attributes, weights)
        inputs = tuple(values[name] for name in node.input if name not in constants)
        if isinstance(layer, nn.Module):
            name = f"layer{len(layers)}"
            layers[name] = layer
            values[node.output[0]] = graph.call_module(name, inputs)
        else:
            values[node.output[0]] = graph.call_function(layer, inputs)
    graph.output(values[proto.graph.output[0].name])
    return fx.GraphModule(layers, graph).train()


def _attributes(node: onnx.NodeProto, has_constants: bool) -> Attributes:
    """The attributes of a node, with ONNX's defaults.

    Raises
    ------
    ValueError
        The layers here do not have one of its attributes, or its constants.
    """
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    for name, (default, expected) in _EXPECTED.get(node.op_type, {}).items():
        if given.get(name, default) != expected:
            raise ValueError(
                f"no layer stands for {node.op_type} with {name} other than {expected}"
            )
    if has_constants and node.op_type in ("Add", "Mul"):
        raise ValueError(f"no layer stands for {node.op_type} with a constant")
    return {**_DEFAULTS.get(node.op_type, {}), **given}


def _transformer(proto: onnx.ModelProto, constants: Weights) -> nn.Module:
    weights = {tensor.name: constants[tensor.name] for tensor in proto.graph.initializer}
    heads = constants.get("layers.0.self_attn.heads")
    if heads is None:
        raise ValueError(f"the file is no {proto.graph.name} of graphgrad.models: it has no heads")
    return transformer(proto.graph.name, weights, int(heads[2]))


def _constants(proto: onnx.ModelProto) -> dict[str, torch.Tensor]:
    named = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant":
            named[node.output[0]] = node.attribute[0].t
    return {
        name: torch.from_numpy(np.array(numpy_helper.to_array(tensor)))
        for name, tensor in named.items()
    }


def _convolution(attributes: Attributes, weights: list[torch.Tensor]) -> nn.Module:
    weight, *bias = weights
    groups = attributes["group"]
    layer = nn.Conv2d(
        weight.shape[1] * groups,
        weight.shape[0],
        tuple(weight.shape[2:]),
        tuple(attributes["strides"]),
        _symmetric(attributes["pads"]),
        groups=groups,
        bias=bool(bias),
    )
    return _loaded(layer, dict(zip(("weight", "bias"), weights, strict=False)))


def _batch_norm(attributes: Attributes, weights: list[torch.Tensor]) -> nn.Module:
    layer = nn.BatchNorm2d(len(weights[0]), eps=attributes["epsilon"])
    names = ("weight", "bias", "running_mean", "running_var")
    counted = {"num_batches_tracked": torch.tensor(0)}
    return _loaded(layer, dict(zip(names, weights, strict=True)) | counted)


def _linear(attributes: Attributes, weights: list[torch.Tensor]) -> nn.Module:
    weight, bias = weights
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    return _loaded(layer, {"weight": weight, "bias": bias})


def _max_pool(attributes: Attributes, weights: list[torch.Tensor]) -> nn.Module:
    window = (attributes["kernel_shape"], attributes["strides"])
    return nn.MaxPool2d(*map(tuple, window), _symmetric(attributes["pads"]))


def _clip(attributes: Attributes, bounds: list[torch.Tensor]) -> nn.Module:
    low, high = (float(bound) for bound in bounds)
    return nn.ReLU6() if (low, high) == (0.0, 6.0) else nn.Hardtanh(low, high)


LAYERS: dict[str, Callable[[Attributes, list[torch.Tensor]], Any]] = {
    "Add": lambda *_: torch.add,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Conv": _convolution,
    "Flatten": lambda *_: nn.Flatten(),
    "Gemm": _linear,
    "GlobalAveragePool": lambda *_: nn.AdaptiveAvgPool2d(1),
    "MaxPool": _max_pool,
    "Mul": lambda *_: torch.mul,
    "Relu": lambda *_: nn.ReLU(),
    "Sigmoid": lambda *_: nn.Sigmoid(),
}
"""What stands for each operator: given its attributes and constants, a module or a function."""


_WINDOW: Attributes = {"strides": [1, 1], "pads": [0, 0, 0, 0]}
_DEFAULTS: Mapping[str, Attributes] = {
    "BatchNormalization": {"epsilon": 1e-5},
    "Conv": {**_WINDOW, "group": 1},
    "MaxPool": _WINDOW,
}
"""ONNX's defaults of attributes, by operator."""

_PLAIN_WINDOW = {"dilations": ([1, 1], [1, 1]), "auto_pad": (b"NOTSET", b"NOTSET")}
_EXPECTED: Mapping[str, Mapping[str, tuple[Any, Any]]] = {
    "Conv": _PLAIN_WINDOW,
    "Flatten": {"axis": (1, 1)},
    "Gemm": {"transA": (0, 0), "transB": (0, 1), "alpha": (1.0, 1.0), "beta": (1.0, 1.0)},
    "MaxPool": {**_PLAIN_WINDOW, "ceil_mode": (0, 0), "storage_order": (0, 0)},
}
"""By operator, attributes with their defaults and the value that the layers have."""


def _symmetric(pads: list[int]) -> tuple[int, int]:
    """ONNX's padding before and after each axis as torch's, which is the same on both."""
    top, left, bottom, right = pads
    if (top, left) != (bottom, right):
        raise ValueError(f"padding is the same on both sides, given {pads}")
    return top, left


def _loaded(layer: nn.Module, values: Weights) -> nn.Module:
    layer.load_state_dict(dict(values))
    return layer
