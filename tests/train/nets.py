"""Small models to train in tests, and what a step holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest import mock

import numpy as np
from onnx import helper
from tvm import relax

import graphgrad as gg
from graphgrad import models
from graphgrad.memory.budget import FunctionBudget
from tests.frontend.graphs import model_of, random


@contextmanager
def tvms_plan() -> Iterator[None]:
    """What is compiled inside the ``with`` block has TVM's plan of memory, and calls in order."""
    with mock.patch.object(FunctionBudget, "apply", lambda self, mod, threads: mod):
        yield


def perceptron(features=(4, 5, 3), batch="N"):
    """A perceptron with inputs (N, 4) and three classes."""
    return gg.from_onnx(models.mlp(features, batch=batch))


def normalized():
    """A model with running statistics, for inputs (N, 2, 5, 5) and four classes."""
    arrays = {
        "conv.weight": random(4, 2, 3, 3),
        "bn.weight": np.ones(4, "float32"),
        "bn.bias": np.zeros(4, "float32"),
        "bn.mean": np.zeros(4, "float32"),
        "bn.var": np.ones(4, "float32"),
    }
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight"], ["conv.out"], kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["conv.out", *list(arrays)[1:]], ["bn.out"]),
        helper.make_node("Relu", ["bn.out"], ["relu.out"]),
        helper.make_node("GlobalAveragePool", ["relu.out"], ["pool.out"]),
        helper.make_node("Flatten", ["pool.out"], ["logits"]),
    ]
    return gg.from_onnx(model_of(nodes, {"x": ["N", 2, 5, 5]}, {"logits": ["N", 4]}, arrays))


@cache
def deep(blocks=4, channels=8):
    """Convolutions with batch norms, activations and a dropout, for inputs (N, 3, 8, 8)."""
    arrays = {"rate": np.array(0.3, "float32")}
    nodes, x, before = [], "x", 3

    def node(op_type, inputs, name, **attributes):
        nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    for k in range(blocks):
        arrays |= {
            f"{k}.weight": random(channels, before, 3, 3, seed=k),
            f"{k}.scale": np.ones(channels, "float32"),
            f"{k}.bias": np.zeros(channels, "float32"),
            f"{k}.mean": np.zeros(channels, "float32"),
            f"{k}.var": np.ones(channels, "float32"),
        }
        x = node("Conv", [x, f"{k}.weight"], f"{k}.conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        norm = [f"{k}.{part}" for part in ("scale", "bias", "mean", "var")]
        x = node("Relu", [node("BatchNormalization", [x, *norm], f"{k}.norm")], f"{k}.relu")
        if k == 1:
            x = node("Dropout", [x, "rate"], "dropout")
        before = channels
    arrays["head"] = random(channels, 4)
    pooled = node("Flatten", [node("GlobalAveragePool", [x], "pool")], "flat")
    node("MatMul", [pooled, "head"], "y")
    return gg.from_onnx(model_of(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 4]}, arrays))


def module(build, **types):
    """Return a Relax module: main returns what `build(builder, *params)` returns, or emits."""
    params = [relax.Var(name, relax.TensorType(shape, ty)) for name, (shape, ty) in types.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            value = build(builder, *params)
            values = value if isinstance(value, tuple) else (value,)
            results = [builder.emit_output(value) for value in values]
        builder.emit_func_output(relax.Tuple(results) if len(results) > 1 else results[0])
    return builder.get()


def loss_function(build, *types):
    """Return a Relax function of outputs and targets, for ``loss=``."""
    return module(build, **{f"v{index}": ty for index, ty in enumerate(types)})["main"]


def mean_square(builder, output, target):
    """Emit the mean of the squared difference."""
    difference = builder.emit(relax.op.subtract(output, target))
    return relax.op.mean(builder.emit(relax.op.multiply(difference, difference)))


def held(step):
    """Return everything that a step holds, as bytes by group and name."""
    groups = {"params": step.params, "state": step.state, **step.optimizer_state}
    return {(g, n): a.tobytes() for g, members in groups.items() for n, a in members.items()}


def staged(step):
    """The memory that a step keeps for arrays from the host, by their names, shapes and dtypes."""
    return {
        (name, *key): buffer
        for name, buffers in step._staging._held.items()
        for key, buffer in buffers._values.items()
    }
