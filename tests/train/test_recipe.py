import ml_dtypes
import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.ir.tensor import type_shape
from graphgrad.layout.choice import MODEL_LAYOUT
from graphgrad.train.accumulate import END_OF_WINDOW, MICRO_BATCH
from graphgrad.train.forward import FORWARD
from graphgrad.train.recipe import recipe
from tests.train.nets import module, normalized, perceptron

WEIGHT, STORED = [4, 2, 3, 3], [3, 3, 2, 4]
CUDA = {"kind": "cuda", "arch": "sm_90"}


def made(model, target="llvm", accumulate=1):
    optimizer = gg.optim.SGD(0.1, momentum=0.9)
    return recipe(model, "cross_entropy", optimizer, None, target, 0, "auto", accumulate)


def shapes_of(params, *names):
    return [type_shape(p.ty) for p in params if p.name in names]


def test_functions_take_weights_as_they_are_stored():
    model = normalized()
    given = made(model, accumulate=2)
    assert given.layout.storage == {"conv.weight": (2, 3, 1, 0)}
    forward = given.forward([(2, 2, 5, 5)])
    assert shapes_of(forward.program.params, "x", "conv.weight") == [[2, 2, 5, 5], STORED]
    evaluation = given.evaluation([(2, 2, 5, 5)])[FORWARD]
    assert shapes_of(evaluation.params, "conv.weight") == [STORED]
    names = ["conv.weight", "momentum.conv.weight", "accumulator.conv.weight"]
    end = given.end_of_window()[END_OF_WINDOW]
    assert shapes_of(end.params, *names) == [STORED] * 3
    names = ["conv.weight", "accumulator.conv.weight"]
    step = given.step(forward)[MICRO_BATCH]
    assert shapes_of(step.params, *names) == [STORED] * 2


@pytest.mark.parametrize("build, target", [(normalized, CUDA), (perceptron, "llvm")])
def test_nothing_is_stored_otherwise(build, target):
    layout = made(build(), target).layout
    assert not layout.storage and (layout == MODEL_LAYOUT) == (target == CUDA)


def test_on_a_gpu_weights_are_as_the_model_has_them():
    model = normalized()
    forward = made(model, CUDA).forward([(2, 2, 5, 5)])
    assert shapes_of(forward.program.params, "conv.weight") == [WEIGHT]


def scaled(dtype):
    """Return a model with one weight of some dtype."""
    mod = module(lambda b, x, w: relax.op.multiply(x, w), x=([1], dtype), w=([1], dtype))
    return gg.Model(mod, {"w": np.ones(1, getattr(ml_dtypes, dtype, dtype))})


@pytest.mark.parametrize("optimizer", [gg.optim.Adam, gg.optim.Adagrad, gg.optim.RMSprop])
def test_an_epsilon_that_is_nothing_is_refused(optimizer):
    """A step divides by it where a gradient is small, and would leave infinite weights."""
    with pytest.raises(gg.ArgumentError, match=r"epsilon=.* is 0 in float16, the dtype of 'w'"):
        gg.train_step(scaled("float16"), "l1", optimizer(1e-3))
    gg.train_step(scaled("float16"), "l1", optimizer(1e-3, epsilon=1e-4))
    gg.train_step(scaled("bfloat16"), "l1", optimizer(1e-3))
