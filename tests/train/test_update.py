import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.ir.tensor import type_shape
from graphgrad.memory.donation import DONATED
from graphgrad.train.forward import ResolvedLoss, inline_model
from graphgrad.train.update import STEP, build_step
from tests.train.nets import normalized, perceptron

ALL_FINITE = "graphgrad.all_finite"


def written(model, trained, **settings):
    """Return the step of a model for batches of two."""
    shapes = [(2, *type_shape(model.mod["main"].params[0].ty)[1:])]
    forward = inline_model(model, True).forward(ResolvedLoss(model, "cross_entropy"), shapes)
    return build_step(forward, trained, gg.optim.SGD(0.1, **settings))[STEP]


def calls(function):
    """Return the names of the ops that a function calls."""
    bindings = [b.value for block in function.body.blocks for b in block.bindings]
    return [str(v.op.name) for v in bindings if isinstance(v, relax.Call)]


def test_signature():
    model = normalized()
    step = written(model, model.trainable(), momentum=0.9)
    moments = [f"momentum.{name}" for name in model.params]
    names = ["x", "targets", "learning_rate", "updates", *model.params, *model.state, *moments]
    assert [p.name for p in step.params] == names
    loss, updates, *fresh = step.ret_ty.fields
    assert type_shape(loss) == type_shape(updates) == [] and str(updates.dtype) == "float64"
    assert [type_shape(ty) for ty in fresh] == [type_shape(p.ty) for p in step.params[4:]]
    assert [list(map(int, pair)) for pair in step.attrs[DONATED]] == [
        [index + 4, index + 2] for index in range(len(fresh))
    ]


def test_it_is_one_pure_dataflow_block():
    model = normalized()
    step = written(model, model.trainable())
    assert bool(step.is_pure)
    assert [type(block) for block in step.body.blocks] == [relax.DataflowBlock]


@pytest.mark.parametrize("trained, products", [
    (["fc1.weight", "fc2.weight"], 5),  # two forward, one backward through fc2, two weights
    (["fc2.weight"], 3),
    (["fc1.weight"], 4),
    (["fc2.bias"], 2),
])  # fmt: skip
def test_gradients_of_frozen_weights_are_not_computed(trained, products):
    step = written(perceptron(), trained)
    assert calls(step).count("relax.matmul") == products
    assert len(step.ret_ty.fields) == 2 + len(trained)


def test_frozen_convolutions_have_no_gradient_ops():
    model = normalized()
    with_gradient = set(calls(written(model, ["conv.weight"])))
    assert any("conv_weight_gradient" in name for name in with_gradient), with_gradient
    assert not any("weight_gradient" in n for n in calls(written(model, ["bn.weight"])))


@pytest.mark.parametrize("settings, buffers", [({}, 0), ({"momentum": 0.5}, 4)])
def test_buffers_are_those_of_the_optimizer(settings, buffers):
    model = perceptron()
    step = written(model, model.trainable(), **settings)
    assert sum(p.name.startswith("momentum.") for p in step.params) == buffers


def checked(function):
    """Return how many values a function asks to be finite, all by one op."""
    bindings = [b.value for block in function.body.blocks for b in block.bindings]
    (check,) = [v for v in bindings if getattr(getattr(v, "op", None), "name", "") == ALL_FINITE]
    return len(check.args[0].ty.fields)


def test_every_gradient_and_statistic_is_checked():
    model = normalized()
    step = written(model, model.trainable())
    # the loss, a gradient for each parameter, a value for each statistic
    assert checked(step) == 1 + len(model.params) + len(model.state)
    assert calls(step).count("relax.where") >= len(model.params) + len(model.state)
    assert np.all([p.ty is not None for p in step.params])


def test_a_norm_is_checked_in_the_place_of_gradients():
    model = normalized()
    step = written(model, model.trainable(), clip_norm=1.0)
    assert checked(step) == 1 + 1 + len(model.state)
    both = written(model, model.trainable(), clip_norm=1.0, clip_value=1.0)
    assert checked(both) == 1 + len(model.params) + 1 + len(model.state)
