"""Layers of graphgrad: a Relax function of one layer, or its value and gradients by gg.vjp."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from layer_cases import Layer, LayerCase
from tvm import relax

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor

INCLUDES = "gg.compile of one layer; with gradients, of gg.vjp"

Build = Callable[..., relax.Expr]
op, nn, image = relax.op, relax.op.nn, relax.op.image


def _batch_norm(axis: int) -> Build:
    def build(builder: Any, x: Any, factor: Any, offset: Any) -> relax.Expr:
        (channels,) = (int(n) for n in factor.ty.shape)
        mean, variance = (relax.const(np.full(channels, value, np.float32)) for value in (0.0, 1.0))
        call = nn.batch_norm(x, factor, offset, mean, variance, axis=axis, training=True)
        return relax.TupleGetItem(builder.emit(call), 0)

    return build


def _resized(method: str, transformation: str) -> Build:
    def build(builder: Any, x: Any) -> relax.Expr:
        _, height, width, _ = (int(n) for n in x.ty.shape)
        return image.resize2d(
            x,
            (2 * height, 2 * width),
            layout="NHWC",
            method=method,
            coordinate_transformation_mode=transformation,
            rounding_method="floor" if method == "nearest_neighbor" else "round",
        )

    return build


BUILD: Mapping[str, Build] = {
    "relu": lambda b, x: nn.relu(x),
    "batch norm": _batch_norm(3),
    "batch norm NCHW": _batch_norm(1),
    "group norm": lambda b, x, g, o: nn.group_norm(x, g, o, 8, 3, [1, 2]),
    "group norm NCHW": lambda b, x, g, o: nn.group_norm(x, g, o, 8, 1, [2, 3]),
    "layer norm": lambda b, x, g, o: nn.layer_norm(x, g, o, [-1]),
    "softmax": lambda b, x: nn.softmax(x, -1),
    "log softmax": lambda b, x: nn.log_softmax(x, -1),
    "gelu": lambda b, x: nn.gelu(x),
    "silu": lambda b, x: nn.silu(x),
    "max pool 3/2": lambda b, x: nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout="NHWC"),
    "max pool 2/2": lambda b, x: nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC"),
    "average pool 2/2": lambda b, x: nn.avg_pool2d(x, (2, 2), (2, 2), layout="NHWC"),
    "global average pool": lambda b, x: nn.adaptive_avg_pool2d(x, (1, 1), layout="NHWC"),
    "resize bilinear": _resized("linear", "half_pixel"),
    "resize nearest": _resized("nearest_neighbor", "asymmetric"),
}


def prepare(case: LayerCase, threads: int) -> tuple[Callable[[], Any], Callable[[], np.ndarray]]:
    """Return what runs a case, and what returns its values: the result, or the data's gradient.

    Parameters
    ----------
    case : LayerCase
    threads : int
        TVM knows them from the environment.
    """
    mod, name = program(case.work), "main"
    if case.part == "training":
        mod, name = gg.vjp(mod), "main_vjp"
        del mod["main"]
    function = relax.VirtualMachine(gg.compile(mod), tvm.cpu())[name]
    tensors = [to_tensor(array) for array in case.inputs()]

    def values() -> np.ndarray:
        found = function(*tensors)
        return (found[1][0] if case.part == "training" else found).numpy()

    return lambda: function(*tensors), values


def program(layer: Layer) -> tvm.IRModule:
    """Return a module whose ``main`` computes a layer of its data, and of factor and offset."""
    shapes = [layer.shape, *([(layer.channels,)] * 2 if layer.scaled else [])]
    names = ["data", "factor", "offset"]
    params = [
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in zip(names, shapes, strict=False)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(BUILD[layer.kind](builder, *params))
        builder.emit_func_output(result)
    return builder.get()
