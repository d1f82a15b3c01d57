import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import graphgrad as gg
from graphgrad.errors import AliasError
from graphgrad.ir.arrays import to_tensor
from graphgrad.registry import unregister
from graphgrad.runtime import ExportedStep
from graphgrad.train.state import TrainState, describe
from tests.frontend.graphs import random
from tests.train.nets import held, module

PARAMS = {
    "w": np.arange(6, dtype="float64"),
    "half": np.ones(3, "float16"),
    "brain": np.ones(2, ml_dtypes.bfloat16),
    "frozen": np.ones(5),
}
FIRST = {"window": 0, "window_state": 2, "accumulators": 4}
"""The position of the first tensor of each group of a window."""

STATISTICS = {"mean": np.full(4, 2.0), "count": np.array(3)}


@pytest.fixture
def state():
    described = describe(PARAMS, STATISTICS, ["w", "half", "brain"], {})
    return TrainState(described, {**PARAMS, **STATISTICS}, tvm.cpu(), accumulates=True)


@pytest.fixture
def window(state):
    return state.window


def test_what_it_holds(window):
    types = {
        group: {name: (str(array.dtype), array.shape) for name, array in members.items()}
        for group, members in window.arrays().items()
    }
    assert types == {
        "window": {"loss": ("float64", ()), "weight": ("float64", ())},
        "window_state": {"mean": ("float64", (4,)), "count": ("int64", ())},
        "accumulators": {
            "w": ("float64", (6,)), "half": ("float32", (3,)), "brain": ("float32", (2,)),
        },
    }  # fmt: skip
    assert len(window.everything()) == 7


def test_the_first_micro_batch_opens_it(window):
    seen = []
    for _ in range(3):
        seen.append((window.accumulated, int(window.opens.numpy())))
        window.replace({})
    assert seen == [(0, 1), (1, 0), (2, 0)]


def test_replace_takes_the_order_of_everything(window):
    fresh = [to_tensor(np.full(3, value)) for value in range(7)]
    window.replace(dict(enumerate(fresh)))
    assert all(a.same_as(b) for a, b in zip(window.everything(), fresh, strict=True))


def test_restore_copies(state):
    groups = state.arrays(with_window=True)
    groups["accumulators"]["w"][...] = 5
    state.restore(groups, 0, 2)
    groups["accumulators"]["w"][...] = 6
    np.testing.assert_array_equal(state.window.arrays()["accumulators"]["w"], 5)
    assert state.accumulated == 2
    state.restore(state.arrays(), 0)
    assert state.accumulated == 0


@pytest.mark.parametrize("group, name", [
    ("accumulators", "half"), ("window_state", "mean"), ("window", "loss"),
])  # fmt: skip
def test_what_may_not_be_shared(state, group, name):
    state.check_overlap({"x": to_tensor(np.zeros(9))})
    moved = to_tensor(state.window.arrays()[group][name])
    state.add({[*state.window.arrays()[group]].index(name) + FIRST[group]: moved})
    for tensor in (moved, state.window.groups[group][name]):
        with pytest.raises(AliasError, match=f"'x' shares memory with the {group} of '{name}'"):
            state.check_overlap({"x": tensor})


PACKED = "tests.train.fails_on_request"
MATRIX = relax.TensorType([3, 3], "float32")


@pytest.fixture
def failing():
    """A model with a packed function between two layers, and the errors of its next calls."""
    planned = []

    @tvm.register_global_func(PACKED)
    def copied(x):
        if planned and (error := planned.pop(0)):
            raise error
        return to_tensor(x)

    def call(x):
        return relax.op.call_pure_packed(PACKED, x, ty_args=MATRIX)

    def build(builder, x, first, second):
        inner = builder.emit(call(builder.emit(relax.op.matmul(x, first))))
        return relax.op.matmul(inner, second)

    gg.declare_effects(PACKED)
    gg.register_gradient(PACKED)(lambda inputs, outputs, cotangents, attrs: [call(cotangents[0])])
    try:
        mod = module(build, **dict.fromkeys(("x", "first", "second"), ([3, 3], "float32")))
        yield gg.Model(mod, {"first": random(3, 3), "second": random(3, 3, seed=1)}), planned
    finally:
        unregister(PACKED)
        tvm_ffi.remove_global_func(PACKED)


@pytest.mark.parametrize("is_exported", [False, True], ids=["compiled", "exported"])
def test_a_micro_batch_that_fails_drops_the_window(failing, is_exported, tmp_path):
    """The gradient of the second layer is summed up before that of the first one fails."""
    model, planned = failing
    step, other = (gg.train_step(model, "mse", gg.optim.SGD(1.0), accumulate=2) for _ in range(2))
    if is_exported:
        step.export(tmp_path / "export", {"x": (3, 3)})
        step = ExportedStep(tmp_path / "export")
    batches = [(random(3, 3, seed=seed), random(3, 3, seed=seed + 9)) for seed in range(3)]
    step(*batches[0])
    planned += [None, RuntimeError("planned")]
    with pytest.raises(RuntimeError, match="planned"):
        step(*batches[1])
    assert (step.accumulated, step.steps) == (0, 0)
    for batch in batches[1:]:
        assert step(*batch) == other(*batch)
    assert held(step) == held(other)
