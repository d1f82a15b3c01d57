"""graphgrad: language models are ONNX files, other loops are written with `gg.scan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from loop_workloads import LANGUAGE_MODEL, LAYER, LAYER_NORM_CELL, SELECTIVE_SCAN, arrays_of, read
from tvm import relax
from workload import LEARNING_RATE, MOMENTUM, Workload

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.frontend.mode import specialize
from graphgrad.ir.arrays import to_tensor

INCLUDES = "forward, loss, backward; of language models train_step, with SGD momentum"

op = relax.op


def prepare(workload: Workload, threads: int, rules: str = "auto") -> TrainStep | Gradients:
    """Return the step, which knows the gradients of its first call; they are made by `rules`."""
    gg.set_threads(threads)
    kind = TrainStep if read(workload).kind == LANGUAGE_MODEL else Gradients
    return kind(workload, rules)


class TrainStep:
    """The step of a language model."""

    def __init__(self, workload: Workload, rules: str):
        optimizer = gg.optim.SGD(LEARNING_RATE, momentum=MOMENTUM)
        model = gg.from_onnx(workload.proto())
        self._step = gg.train_step(model, loss="cross_entropy", optimizer=optimizer, rules=rules)
        self._batch = workload.batch()

    def __call__(self) -> float:
        return float(self._step(*self._batch))

    def gradients(self) -> dict[str, np.ndarray]:
        """Return the momentum of each weight, which is its gradient after one step."""
        (momentum,) = self._step.optimizer_state.values()
        return dict(momentum)


class Gradients:
    """A function's value and its gradients by all arguments."""

    def __init__(self, workload: Workload, rules: str):
        loop, arrays = read(workload), arrays_of(workload)
        if loop.kind == LAYER:
            mod = specialize(gg.from_onnx(workload.proto()), None)
        else:
            mod = program(_FUNCTIONS[loop.kind], arrays)
        mod = gg.vjp(mod, rules=rules)
        del mod["main"]
        self._function = relax.VirtualMachine(gg.compile(mod), tvm.cpu())["main_vjp"]
        self._names = list(arrays)
        self._tensors = [to_tensor(array) for array in (*arrays.values(), np.float32(1))]

    def __call__(self) -> float:
        self._gradients: Any = None  # those of the last call make room, as they do in torch
        outputs, self._gradients = self._function(*self._tensors)
        return float(flat(outputs)[0])

    def gradients(self) -> dict[str, np.ndarray]:
        """Return the gradients of the last call."""
        return dict(zip(self._names, flat(self._gradients), strict=True))


def program(function: Callable[..., Any], arrays: Mapping[str, np.ndarray]) -> tvm.IRModule:
    """Return a module whose ``main`` is the mean square of a function of arrays."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(name, relax.TensorType(array.shape, str(array.dtype)))
        for name, array in arrays.items()
    ]
    with builder.function("main", params):
        with builder.dataflow():
            y = builder.emit(function(*params))
            loss = builder.emit_output(op.mean(op.multiply(y, y)))
        builder.emit_func_output(loss)
    return builder.get()


def layer_norm_lstm(
    x: Any, w: Any, r: Any, x_gain: Any, h_gain: Any, c_gain: Any, bias: Any, c_bias: Any
) -> Any:
    """The states of an LSTM whose products and cell are normalized (Ba, Kiros, Hinton 2016)."""
    _, batch, width = (int(extent) for extent in x.ty.shape)
    zero = relax.const(np.zeros(4 * width, np.float32))

    def step(carry: Any, x: Any) -> Any:
        h, c = carry
        from_x = op.nn.layer_norm(op.matmul(x, w), x_gain, bias, [-1])
        from_h = op.nn.layer_norm(op.matmul(h, r), h_gain, zero, [-1])
        gates = relax.BlockBuilder.current().emit(op.split(op.add(from_x, from_h), 4, axis=-1))
        i, f, g, o = (gates[place] for place in range(4))
        kept = op.multiply(op.sigmoid(f), c)
        c = op.add(kept, op.multiply(op.sigmoid(i), op.tanh(g)))
        h = op.multiply(op.sigmoid(o), op.tanh(op.nn.layer_norm(c, c_gain, c_bias, [-1])))
        return (h, c), h

    start = op.zeros((batch, width), "float32")
    return gg.scan(step, (start, start), x)[1]


def selective_scan(u: Any, delta: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """h = exp(Δ a) h + Δ u b, y = h · c + d u: the scan of Mamba, time first."""
    _, batch, channels = (int(extent) for extent in u.ty.shape)
    states = int(a.ty.shape[1])

    def step(h: Any, row: Any) -> Any:
        u, delta, b, c = row
        decay = op.exp(op.multiply(op.expand_dims(delta, -1), a))
        input = op.multiply(op.expand_dims(op.multiply(delta, u), -1), op.expand_dims(b, 1))
        h = op.add(op.multiply(decay, h), input)
        return h, op.sum(op.multiply(h, op.expand_dims(c, 1)), -1)

    start = op.zeros((batch, channels, states), "float32")
    _, y = gg.scan(step, start, (u, delta, b, c))
    return op.add(y, op.multiply(u, d))


_FUNCTIONS = {LAYER_NORM_CELL: layer_norm_lstm, SELECTIVE_SCAN: selective_scan}
