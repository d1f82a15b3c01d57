"""A training step leaves everything on the device until somebody asks."""

import numpy as np
import pytest
import tvm

import graphgrad as gg
from graphgrad.errors import AliasError, InputError
from tests.cuda.device.running import gpu, is_emulated
from tests.train.nets import deep, held, perceptron, staged

ADAM = gg.optim.Adam(0.01)
X = np.random.default_rng(0).standard_normal((8, 4)).astype("float32")
Y = np.arange(8) % 3


@pytest.fixture(scope="module")
def compiled():
    return gg.train_step(perceptron(), optimizer=ADAM, target=gpu())


@pytest.fixture
def step(compiled, tmp_path):
    """The compiled step, put back to where it was afterwards."""
    compiled.save(tmp_path / "before")
    yield compiled
    compiled.load(tmp_path / "before")


def test_nothing_is_read_back_unasked(step, monkeypatch):
    step(X, Y)

    def refuse(*_):
        raise AssertionError("read back unasked")

    monkeypatch.setattr(tvm.runtime.Tensor, "numpy", refuse)
    losses = []
    for rate in (0.01, 0.02, 0.02):
        step.learning_rate = rate
        losses.append(step(X, Y))
    monkeypatch.undo()
    assert not any(loss.is_read for loss in losses)
    assert losses[0] > losses[1] > losses[2] and all(loss.applied for loss in losses)
    assert all(loss.is_read for loss in losses)
    assert losses[0].item() == losses[0] == losses[0].settle() and losses[0].settle().applied


def test_losses_are_read_in_any_order(step):
    losses = [step(X, Y) for _ in range(4)]
    backwards = [float(loss) for loss in reversed(losses)]
    assert backwards == sorted(backwards)


def test_tensors_elsewhere_are_copied(step, tmp_path):
    step.save(tmp_path / "start")
    first = float(step(tvm.runtime.tensor(X), Y))
    step.load(tmp_path / "start")
    assert first == step(X, Y)


def test_memory_of_a_parameter_is_refused():
    model = perceptron((4, 4, 3))
    step = gg.train_step(model, optimizer=ADAM, target=gpu())
    before = held(step)
    with pytest.raises(AliasError, match="'input' shares memory with the parameter"):
        step(step._tensors.params["fc1.weight"], np.arange(4) % 3)
    assert held(step) == before and step.steps == 0


def test_memory_for_batches_is_taken_once(step):
    step(X, Y), step(X, Y)
    free, buffers = tvm.cuda().available_global_memory, staged(step)
    for _ in range(3):
        step(X, Y)
    assert tvm.cuda().available_global_memory == free or not is_emulated()
    assert staged(step).keys() == buffers.keys()
    assert all(staged(step)[key] is buffer for key, buffer in buffers.items())


def test_refused_inputs_take_no_memory(step):
    buffers = staged(step)
    for wrong in (X[:, :3], X.astype("float64"), X[:0]):
        with pytest.raises(InputError):
            step(wrong, Y)
    assert staged(step).keys() == buffers.keys()


def test_a_loss_keeps_its_tensor(step):
    loss = step(X, Y)
    expected = float(loss._value.numpy())
    for _ in range(5):
        step(X, Y)
    assert float(loss) == expected


def test_micro_batches(monkeypatch):
    """They follow those of the host; nothing is read back, and no tensor moves."""
    step = gg.train_step(perceptron(), optimizer=ADAM, target=gpu(), accumulate=2)
    host = gg.train_step(perceptron(), optimizer=ADAM, accumulate=2)
    step(X, Y), step(-X, Y)

    def places():
        owned = [*step._tensors.replaced()[1:], *step._tensors.window.everything()]
        return [tensor.data_ptr() for tensor in owned]

    before = places()
    with monkeypatch.context() as unread:
        unread.setattr(tvm.runtime.Tensor, "numpy", None)
        losses = [step(x, Y) for x in (X, -X, X * np.float32(np.nan), X, X)]
    assert places() == before and step.accumulated == 1
    assert [loss.applied for loss in losses] == [False, True, False, False, False]
    assert (step.steps, step.skipped) == (3, 1)
    for x in (X, -X, X, -X):
        host(x, Y)
    for name, expected in host.params.items():
        np.testing.assert_allclose(step.params[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_within_a_budget_of_memory_everything_is_the_same_bit_for_bit():
    batch = np.random.default_rng(1).standard_normal((4, 3, 8, 8)).astype("float32"), np.arange(4)
    plain, whole = (gg.train_step(deep(2), target=gpu(), memory=m) for m in (None, 1.0))
    tight = gg.train_step(deep(2), target=gpu(), memory=whole.plan(*batch).least)
    assert [float(plain(*batch)) for _ in range(2)] == [float(tight(*batch)) for _ in range(2)]
    assert held(plain) == held(tight)
    plan = tight.plan(*batch)
    assert plan.repeated > 0 and plan.scratch == 0 and plan.peak < plan.unconstrained
