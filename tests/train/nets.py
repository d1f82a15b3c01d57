"""Small models to train in tests, and what a step holds."""

import numpy as np
from onnx import helper
from tvm import relax

import graphgrad as gg
from graphgrad import models
from tests.frontend.graphs import model_of, random


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
