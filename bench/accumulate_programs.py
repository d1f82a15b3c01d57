"""What `accumulate.py` measures: gradients of layers and of a network, a step of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.write import write_program
from graphgrad.memory.allocation import allocated_bytes, scratch_bytes
from graphgrad.memory.donation import DONATED
from graphgrad.models import resnet18, resnet_digits
from graphgrad.train.forward import FORWARD, Forward, ResolvedLoss, inline_model
from graphgrad.train.update import STEP, build_step

FORMS = ("donated", "copied")


@dataclass(frozen=True)
class Program:
    """A function that is differentiated, and the names of what it is differentiated by."""

    mod: tvm.IRModule
    name: str
    wrt: list[str]

    def gradient(self, grad_req: str) -> tvm.IRModule:
        """Return a module with the gradient alone."""
        mod = gg.vjp(self.mod, self.name, wrt=self.wrt, grad_req=grad_req)
        del mod[self.name]
        return mod


def layer(compute: Callable[..., Any], data: Any, weights: Sequence[Sequence[int]]) -> Program:
    """Return the program of one op of data and weights; `data` is a type or a shape of floats."""
    first = data if isinstance(data, relax.TensorType) else relax.TensorType(data, "float32")
    types = [relax.TensorType(shape, "float32") for shape in weights]
    params = [relax.Var("x", first), *(relax.Var(f"w{i}", ty) for i, ty in enumerate(types))]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(compute(*params))
        builder.emit_func_output(result)
    return Program(builder.get(), "main", [param.name for param in params[1:]])


def network(small: bool) -> Program:
    """Return the forward pass of a residual network with its loss."""
    model, forward = _forward(small, batch=8)
    params = [param.name for param in forward.params]
    mod = write_program(forward.program, FORWARD)
    return Program(mod, FORWARD, [name for name in params if name in model.trainable()])


def step(small: bool, form: str) -> tuple[tvm.IRModule, str]:
    """Return the training step of the network, "donated" or "copied", and its name."""
    model, forward = _forward(small, batch=32)
    optimizer = gg.optim.SGD(0.1, momentum=0.9)
    mod = build_step(forward, model.trainable(), optimizer)
    if form == "copied":
        mod[STEP] = mod[STEP].without_attr(DONATED)
    return mod, STEP


def sums(types: Sequence[Any]) -> tvm.IRModule:
    """Return a module whose function ``sums(*olds, *gradients)`` adds gradients up, in place."""
    olds = [relax.Var(f"old{i}", ty) for i, ty in enumerate(types)]
    gradients = [relax.Var(f"gradient{i}", ty) for i, ty in enumerate(types)]
    donated = {DONATED: [[i, i] for i in range(len(olds))]}
    builder = relax.BlockBuilder()
    with builder.function("sums", [*olds, *gradients], donated):
        with builder.dataflow():
            pairs = zip(olds, gradients, strict=True)
            total = relax.Tuple([builder.emit(relax.op.add(*pair)) for pair in pairs])
            result = builder.emit_output(total)
        builder.emit_func_output(result)
    return builder.get()


def needed(mod: tvm.IRModule) -> dict[str, int]:
    """Return the bytes that a lowered module's functions allocate, and that one kernel holds."""
    kernels = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    return {
        "allocated_bytes": sum(allocated_bytes(mod).values()),
        "scratch_bytes": max(sum(scratch_bytes(kernel)) for kernel in kernels),
    }


def tensors(types: Sequence[Any]) -> list[Any]:
    """Return random tensors: small floats, which keep a network finite, and small integers."""
    generator = np.random.default_rng(0)

    def one(ty: Any) -> np.ndarray:
        shape, dtype = [int(n) for n in ty.shape], str(ty.dtype)
        if dtype.startswith("int"):
            return generator.integers(0, 10, shape).astype(dtype)
        return generator.uniform(0.01, 0.02, shape).astype(dtype)

    return [to_tensor(one(ty)) for ty in types]


def size(ty: Any) -> int:
    """Return the bytes of a tensor."""
    return math.prod(int(n) for n in ty.shape) * tvm.DataType(str(ty.dtype)).itemsize


def _forward(small: bool, batch: int) -> tuple[gg.Model, Forward]:
    proto = (
        resnet_digits(batch=4, width=0.0625)
        if small
        else resnet18(batch=batch, channels=3, size=32, classes=10, stem="cifar")
    )
    model = gg.from_onnx(proto)
    return model, inline_model(model, True).forward(ResolvedLoss(model, "cross_entropy"), [])
