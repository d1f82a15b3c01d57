"""The model families at small width: what the compile matrix and the GPU kit are made of.

Residual networks, perceptron and LeNet come from ``graphgrad.models``; those with custom operators
and loops are of ``tests/derived_nets.py``; the others are exported from ``tests/torch_nets.py`` by
torch, which they need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import ml_dtypes
import numpy as np
import onnx
import paths  # noqa: F401 (where `tests` is found)
from onnx import TensorProto, helper, numpy_helper

import graphgrad as gg
from graphgrad.models import lenet, mlp, resnet18, resnet34, resnet50, resnet_digits
from tests import derived_nets
from tests.promoted_models import promoted
from tests.torch_export import NETWORKS, build, export, inputs_of

DTYPES = ("float32", "float64", "float16", "bfloat16")
CLASSES = 10
BATCH = 4

Arrays = dict[str, np.ndarray]
Batch = tuple[Arrays, np.ndarray]

_HALF = {
    "float16": (TensorProto.FLOAT16, np.dtype(np.float16)),
    "bfloat16": (TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
}


@dataclass(frozen=True)
class Family:
    """A network at small width, in training form, with a symbolic batch.

    Attributes
    ----------
    name : str
    build : function
        Of no arguments; returns the float32 ONNX file, with seeded weights.
    draw : function
        Of batch size and seed; returns the inputs by name, floats as float32, and the labels.
    loss : str
        A name in `graphgrad.loss`.
    rules : "auto" or "derived"
        Which gradient rules it is differentiated by.
    """

    name: str
    build: Callable[[], onnx.ModelProto]
    draw: Callable[[int, int], Batch]
    loss: str = "cross_entropy"
    rules: str = "auto"

    def model(self, dtype: str = "float32") -> gg.Model:
        """Return the network with its parameters, statistics and float inputs in a dtype.

        Raises
        ------
        ValueError
            The dtype is none of `DTYPES`, or a part of the network keeps its own.
        """
        if dtype == "float32":
            return _imported(self.build())
        if dtype == "float64":
            return promoted(_imported(self.build()))
        if dtype not in _HALF:
            raise ValueError(f"dtype={dtype!r} is none of {DTYPES}")
        return _imported(in_half(self.build(), dtype))

    def batch(self, size: int = BATCH, dtype: str = "float32", seed: int = 0) -> Batch:
        """Return inputs by name, floats in the dtype, and labels, int64."""
        inputs, labels = self.draw(size, seed)
        kind = _HALF[dtype][1] if dtype in _HALF else np.dtype(dtype)
        floats = {name: x.dtype == np.float32 for name, x in inputs.items()}
        return {k: x.astype(kind) if floats[k] else x for k, x in inputs.items()}, labels


def _imported(proto: onnx.ModelProto) -> gg.Model:
    return gg.from_onnx(proto, custom_ops=derived_nets.CUSTOM_OPS)


def in_half(proto: onnx.ModelProto, dtype: str) -> onnx.ModelProto:
    """Return a file that computes in float16 or bfloat16 wherever it computed in float32."""
    code, kind = _HALF[dtype]
    half = onnx.ModelProto()
    half.CopyFrom(proto)
    for tensor in half.graph.initializer:
        _to_half(tensor, code, kind)
    for value in (*half.graph.input, *half.graph.output, *half.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = code
    for node in half.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = code
            if attribute.type == onnx.AttributeProto.TENSOR:
                _to_half(attribute.t, code, kind)
    return half


def _to_half(tensor: onnx.TensorProto, code: int, kind: np.dtype) -> None:
    if tensor.data_type != TensorProto.FLOAT:
        return
    array = numpy_helper.to_array(tensor).astype(kind)
    made = helper.make_tensor(tensor.name, code, array.shape, array.tobytes(), raw=True)
    tensor.CopyFrom(made)


def _labeled(shape: tuple[int, ...], batch: int, seed: int) -> Batch:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((batch, *shape), dtype=np.float32)
    return {"input": x}, generator.integers(0, CLASSES, batch)


def _torch_file(name: str) -> onnx.ModelProto:
    import torch  # noqa: PLC0415 (the other families do without)

    return export(build(name).float(), inputs_of(name, torch.float32)[0], training=True)


def _torch_batch(name: str, batch: int, seed: int) -> Batch:
    import torch  # noqa: PLC0415

    inputs, labels = inputs_of(name, torch.float32, batch, seed)
    return {key: tensor.numpy() for key, tensor in inputs.items()}, labels.numpy()


def _residual(network: Callable[..., onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    return partial(network, width=0.125, size=64, classes=CLASSES)


@cache
def families() -> dict[str, Family]:
    """Return all families by name, from the smallest to the deepest."""
    image = partial(_labeled, (3, 64, 64))
    of_torch = [
        Family(name, partial(_torch_file, name), partial(_torch_batch, name)) for name in NETWORKS
    ]
    found = [
        Family("mlp", mlp, partial(_labeled, (64,))),
        Family("lenet", lenet, partial(_labeled, (1, 28, 28))),
        Family("resnet_digits", resnet_digits, partial(_labeled, (1, 8, 8))),
        *of_torch,
        Family("resnet18", _residual(resnet18), image),
        Family("resnet34", _residual(resnet34), image),
        Family("resnet50", _residual(resnet50), image),
    ]
    return {family.name: family for family in found}


@cache
def derived_families() -> dict[str, Family]:
    """Return the families whose gradients are derived from kernels, in full or in part, by name."""
    series = partial(_labeled, (derived_nets.TIMES, derived_nets.FEATURES))
    image, digits = partial(_labeled, (1, 28, 28)), partial(_labeled, (1, 8, 8))
    found = [
        Family("lenet_derived", lenet, image, rules="derived"),
        Family("resnet_digits_derived", resnet_digits, digits, rules="derived"),
        Family("te_op", derived_nets.te_op, partial(_labeled, (derived_nets.FEATURES,))),
        Family("scan", derived_nets.scan, series),
        Family("lstm", derived_nets.lstm, series),
        Family("gru", derived_nets.gru, series),
    ]
    return {family.name: family for family in found}
