"""The loss scale of float16: its transitions, and that a bad step changes nothing else."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad import models
from graphgrad.ir.write import write_function
from graphgrad.runtime import ExportedStep
from graphgrad.train.loss_scale import LossScale
from tests.peers import peer

MODEL = gg.from_onnx(models.mlp((6, 5, 3)))
X = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
Y = np.array([0, 2, 1, 1])
BAD = np.float32(1e30) * X


def new_step(precision="float16", **options):
    optimizer = gg.optim.Adam(0.01)
    return gg.train_step(MODEL, optimizer=optimizer, precision=precision, **options)


def owned(step):
    """Return all that a step owns but its scale, by name."""
    groups = {"params": step.params, "state": step.state, **step.optimizer_state}
    return {f"{group} {name}": a for group, arrays in groups.items() for name, a in arrays.items()}


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


@pytest.fixture(scope="module")
def transition():
    scale = LossScale()
    is_good = relax.Var("is_good", relax.TensorType([], "bool"))

    def body(emitter):
        return tuple(scale.emit_next(emitter, emitter.lift(is_good)))

    mod = write_function(tvm.IRModule(), "next", [*scale.all, is_good], body)
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())

    def next_of(value, good_steps, good):
        arguments = (np.float32(value), np.int64(good_steps), np.bool_(good))
        results = machine["next"](*(tvm.runtime.tensor(np.asarray(a)) for a in arguments))
        return [result.numpy()[()] for result in results]

    return next_of


@pytest.mark.parametrize("start", [2.0**16, 2.0**126, 2.0**127, 2.0**-148])
def test_transitions_are_those_of_torch(transition, start):
    torch = peer("torch")
    ours = [np.float32(start), np.int64(1995)]
    scale = torch.full((), start)
    tracker = torch.full((), 1995, dtype=torch.int32)
    generator = np.random.default_rng(0)
    for number in range(120):
        # At first long enough in a row to grow, then by chance.
        good = number < 20 or bool(generator.random() < 0.7)
        if number == 60:
            ours[1] = np.int64(1999)
            tracker.fill_(1999)
        torch._amp_update_scale_(scale, tracker, torch.tensor(float(not good)), 2.0, 0.5, 2000)
        ours = transition(*ours, good)
        assert ours == [scale.item(), tracker.item()], number


def test_scale_starts_as_that_of_torch():
    assert new_step().loss_scale == peer("torch").amp.GradScaler("cpu").get_scale()
    assert new_step("bfloat16").loss_scale == new_step("float32").loss_scale == 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_that_overflows_halves_the_scale_and_changes_nothing_else(accumulate):
    step = new_step(accumulate=accumulate)
    for _ in range(accumulate):
        step(X, Y)
    before, scale, skipped = owned(step), step.loss_scale, step.skipped
    for number in range(accumulate):
        step(BAD if number == 0 else X, Y)
    assert (step.loss_scale, step.skipped) == (scale / 2, skipped + 1)
    assert_same(owned(step), before)


def test_gradients_are_those_of_the_loss_itself():
    """A power of 2 is exact: the step is that of another scale, bit for bit."""
    steps = [new_step() for _ in range(2)]
    for step, overflows in zip(steps, (6, 7), strict=True):
        for _ in range(overflows):
            step(BAD, Y)
        for _ in range(3):
            step(X, Y)  # Adam counts the steps that changed something
        assert step.skipped == overflows
    assert steps[1].loss_scale == steps[0].loss_scale / 2
    assert_same(owned(steps[0]), owned(steps[1]))


def test_gradients_too_small_for_float16_train():
    """Without a scale they would be zero."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 3), "float32"))
    y = relax.Var("y", relax.TensorType((4, 3), "float32"))
    with builder.function("loss", [x, y]):
        with builder.dataflow():
            error = builder.emit(relax.op.subtract(x, y))
            mean = builder.emit(relax.op.mean(builder.emit(relax.op.multiply(error, error))))
            result = builder.emit_output(
                relax.op.multiply(mean, relax.const(np.float32(1e-9), "float32"))
            )
        builder.emit_func_output(result)
    step = gg.train_step(MODEL, builder.get()["loss"], gg.optim.SGD(1e9), precision="float16")
    before = owned(step)
    step(X, np.zeros((4, 3), "float32"))
    assert step.skipped == 0
    assert all(np.any(before[name] != a) for name, a in owned(step).items() if "params" in name)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_saved_step_goes_on_bit_for_bit(tmp_path, accumulate):
    step = new_step(accumulate=accumulate)
    for x in (BAD, X, X)[: 2 * accumulate]:
        step(x, Y)
    step.save(tmp_path / "saved")
    other = new_step(accumulate=accumulate)
    other.load(tmp_path / "saved")
    assert other.loss_scale == step.loss_scale
    for _ in range(2 * accumulate):
        assert float(step(X, Y)) == float(other(X, Y))
    assert_same(owned(step), owned(other))


def test_precision_may_change_between_two_runs(tmp_path):
    """A file without a scale starts a new one; a scale that nobody needs is passed over."""
    half = new_step()
    half(BAD, Y)
    half.save(tmp_path / "half")
    full = new_step("float32")
    full.load(tmp_path / "half")
    assert full.loss_scale == 1
    full(X, Y)
    full.save(tmp_path / "full")
    half.load(tmp_path / "full")
    assert half.loss_scale == 2.0**16
    assert_same(owned(half), owned(full))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_export_scales_as_the_step_does(tmp_path, accumulate):
    step = new_step(accumulate=accumulate)
    for _ in range(accumulate):
        step(BAD, Y)
    step.export(tmp_path / "export")
    exported = ExportedStep(tmp_path / "export")
    assert exported.loss_scale == step.loss_scale
    for x in (X, X, BAD, X)[: 2 + accumulate]:
        np.testing.assert_array_equal(float(exported(x, Y)), float(step(x, Y)))
    assert exported.loss_scale == step.loss_scale
    assert_same(exported.params, step.params)
