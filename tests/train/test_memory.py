"""Steps within a budget of memory: the same bits, as much memory as is predicted."""

from functools import cache

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

import graphgrad as gg
from graphgrad import models
from graphgrad.errors import ArgumentError
from graphgrad.lower.pipeline import lower
from graphgrad.memory import rematerialize
from graphgrad.memory.allocation import allocated_bytes
from graphgrad.memory.budget import FunctionBudget, MemoryBudget, budget_of
from tests.exports import run_alone
from tests.frontend.graphs import model_of, random
from tests.train.nets import deep, held, module, tvms_plan


def recurrent(steps=12, features=8):
    """Two GRUs, whose loops are kernels, for inputs (12, N, 8)."""
    weights = {
        f"{k}.{name}": random(1, 3 * features, features, seed=10 * k + n)
        for k in range(2)
        for n, name in enumerate("WR")
    }
    weights["axis"] = np.array([1], "int64")
    nodes, x = [], "x"
    for k in range(2):
        inputs = [x, f"{k}.W", f"{k}.R"]
        nodes.append(helper.make_node("GRU", inputs, [f"{k}.h"], f"{k}", hidden_size=features))
        x = "y" if k else f"{k}.y"
        nodes.append(helper.make_node("Squeeze", [f"{k}.h", "axis"], [x], f"{k}.squeeze"))
    shape = [steps, "N", features]
    return gg.from_onnx(model_of(nodes, {"x": shape}, {"y": shape}, weights))


def batches(shape, classes, count=3):
    rng = np.random.default_rng(5)
    return [
        (rng.standard_normal(shape).astype("float32"), rng.integers(0, classes, shape[0]))
        for _ in range(count)
    ]


IMAGES = batches((4, 3, 8, 8), 4)
SERIES = [(x, x[::-1].copy()) for x, _ in batches((12, 4, 8), 2)]
CASES = {
    "momentum": (deep, IMAGES, {}),
    "accumulated": (lambda: deep(3), IMAGES, {"accumulate": 2, "optimizer": gg.optim.AdamW(1e-2)}),
    "float16": (lambda: deep(2), IMAGES[:2], {"precision": "float16"}),
    "loops": (recurrent, SERIES, {"loss": "mse"}),
}


@cache
def lowered(model, shape, share, **options):
    """A step within a share of what it holds otherwise, not compiled; its module and its plan."""
    recipe = gg.train_step(model, memory=share, **options).recipe
    budget = recipe.step_budget()
    mod = lower(recipe.step(recipe.forward([shape])), recipe.target, budget=budget)
    return allocated_bytes(mod)[recipe.step_name], budget.plan


def least(model, batch, **options):
    return lowered(model, batch[0].shape, 1.0, **options)[1].least


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.slow] * (case in ("momentum", "float16")))
        for case in CASES
    ],
)
def test_everything_is_the_same_bit_for_bit(case):
    build, data, options = CASES[case]
    model = build()
    ordered, plain = (gg.train_step(model, **options) for _ in range(2))
    tight = gg.train_step(model, memory=least(model, data[0], **options), **options)
    with tvms_plan():
        losses = [float(ordered(*batch)) for batch in data]
        outputs = ordered.evaluate(data[0][0])
    for step in (plain, tight):
        assert losses == [float(step(*batch)) for batch in data]
        assert held(step) == held(ordered)
        for name, values in step.evaluate(data[0][0]).items():
            np.testing.assert_array_equal(values, outputs[name])
    assert plain._arena._bytes < ordered._arena._bytes
    plan = tight.plan(*data[0])
    assert plan.repeated > 0 and plan.peak <= plan.least < plan.unconstrained


def test_what_is_predicted_is_allocated_and_falls_with_the_budget():
    shape = IMAGES[0][0].shape
    _, whole = lowered(deep(), shape, 1.0)
    assert whole.peak == whole.unconstrained and whole.repeated == 0
    peaks = []
    least = whole.least / whole.unconstrained + 1e-6
    for share in (1.0, (2 + least) / 3, (1 + 2 * least) / 3, least):
        taken, plan = lowered(deep(), shape, share)
        peaks.append(plan.peak)
        assert plan.peak <= share * whole.unconstrained
        # The pool of the virtual machine gives whole pages.
        assert plan.results + plan.tensors <= taken <= plan.results + plan.tensors + 4096 * 8
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) > 1


def test_without_a_budget_the_bits_are_the_same_where_steps_are_repeated(monkeypatch):
    monkeypatch.setattr(rematerialize, "_NO_TIME", 0.5)  # small tensors take long for their bytes
    model = deep()
    recipe = gg.train_step(model).recipe
    budget = FunctionBudget(recipe.step_name)
    lower(recipe.step(recipe.forward([IMAGES[0][0].shape])), recipe.target, budget=budget)
    assert budget.plan.repeated > 0
    assert budget.plan.peak < 0.96 * budget.plan.unconstrained
    ordered, frugal = (gg.train_step(model) for _ in range(2))
    with tvms_plan():
        losses = [float(ordered(*batch)) for batch in IMAGES]
    assert losses == [float(frugal(*batch)) for batch in IMAGES]
    assert held(frugal) == held(ordered)


class Footprint:
    """The addresses of the tensors that kernels are given, as a watch of a step."""

    def __init__(self):
        self.bytes = set()

    def lowering(self, name, budget):
        return tvm.transform.PassContext.current()

    def loaded(self, machine, device):
        machine.set_instrument(self.called)

    def called(self, _, name, before, __, *arguments):
        for argument in arguments:
            if isinstance(argument, tvm.runtime.Tensor) and not name.startswith("vm.builtin"):
                size = int(np.prod(argument.shape)) * np.dtype(str(argument.dtype)).itemsize
                start = argument.data_ptr() // 4
                self.bytes.update(range(start, start + size // 4))
        return tvm.runtime.vm.VMInstrumentReturnKind.NO_OP


def test_the_memory_that_kernels_see_is_what_was_predicted():
    model, batch = deep(), IMAGES[0]
    step = gg.train_step(model, memory=least(model, batch))
    watch = Footprint()
    with step.watched(watch):
        plan = step.plan(*batch)
        float(step(*batch))
    # Of tensors as small as these, a twentieth of the block is what rounds them up to 256 bytes.
    assert 0.94 * (plan.peak - plan.scratch) <= 4 * len(watch.bytes) <= plan.peak - plan.scratch


def test_a_budget_that_is_too_small_says_the_least():
    model, batch = deep(), IMAGES[0]
    bytes_needed = least(model, batch)
    step = gg.train_step(model, memory=bytes_needed - 1)
    before = held(step)
    with pytest.raises(
        ArgumentError, match=f"least possible is {bytes_needed} bytes, 0\\."
    ) as error:
        step(*batch)
    assert "Give more, or a smaller batch" in str(error.value)
    assert held(step) == before and step.steps == 0


def test_gradients():
    model, (x, y) = deep(2), IMAGES[0]
    options = {"loss": "cross_entropy", "training": True}
    plain, tight = (gg.value_and_grad(model, **options, memory=m) for m in (None, 0.97))
    for ours, theirs in zip(
        tight({"x": x, "targets": y}), plain({"x": x, "targets": y}), strict=True
    ):
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_exports(tmp_path):
    model, batch = deep(2), IMAGES[0]
    options = {"shapes": {"x": batch[0].shape}, "memory": least(model, batch)}
    gg.export_step(model, tmp_path / "export", **options)
    losses, _ = run_alone(tmp_path / "export", IMAGES, tmp_path / "results")
    step = gg.train_step(model)
    assert losses == [float(step(*batch)) for batch in IMAGES]


@pytest.mark.parametrize("limit", [0, -5, True, 0.0, 1.5, "2GB", float("nan")])
def test_bad_budgets(limit):
    with pytest.raises(ArgumentError, match="give a whole number of bytes, or a share"):
        budget_of(limit)


def test_a_step_without_a_budget_has_no_plan():
    step = gg.train_step(gg.from_onnx(models.mlp((4, 5, 3))))
    with pytest.raises(ArgumentError, match="give train_step memory="):
        step.plan(np.zeros((2, 4), "float32"), np.zeros(2, "int64"))
    assert budget_of(None) is None and budget_of(MemoryBudget(5)) == budget_of(5)


def test_marked_segments_take_less_memory():
    """Eight layers; of each two, all but their result is computed again."""
    grad = relax.op.grad
    w = random(8, 8)

    def build(b, x, w, marks):
        for k in range(8):
            x = b.emit(grad.start_checkpoint(x)) if marks and k % 2 == 0 else x
            x = b.emit(relax.op.tanh(b.emit(relax.op.matmul(x, w))))
            x = b.emit(relax.op.exp(b.emit(relax.op.sin(x))))
            x = b.emit(grad.end_checkpoint(x)) if marks and k % 2 else x
        return x

    shape = (8192, 8)  # small results are computed once, whatever the program says
    types = {"x": (shape, "float32"), "w": (w.shape, "float32")}
    plans = []
    for marks in (False, True):
        mod = module(lambda b, x, w, marks=marks: build(b, x, w, marks), **types)
        plans.append(lowered(gg.Model(mod, {"w": w}), shape, 1.0, loss="mse")[1])
    assert plans[1].peak < 0.8 * plans[0].peak
