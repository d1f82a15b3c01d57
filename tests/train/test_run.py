import copy
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from graphgrad.errors import InputError
from graphgrad.train import run
from graphgrad.train.data import Dataset, Examples
from graphgrad.train.run import PATIENCE, History, Observer, Plan, evaluate, train
from graphgrad.train.schedule import cosine, warmup


@dataclass
class Loss:
    """The loss of a step; of an unready one nobody knows whether the device is done with it."""

    value: float
    applied: bool = True
    is_read: bool = True

    def __float__(self):
        return self.value


class LinearStep:
    """Logistic-free stand-in for a training step: one gradient step of least squares."""

    def __init__(self, weights: np.ndarray | None = None, bad: set[int] = frozenset()):
        self.weights = np.zeros((2, 1)) if weights is None else weights.copy()
        self.learning_rate = math.nan
        self.bad = bad
        self.calls: list[tuple[np.ndarray, float]] = []
        self.losses: list[float] = []

    def __call__(self, inputs, targets=None):
        self.calls.append((inputs.copy(), self.learning_rate))
        if len(self.calls) - 1 in self.bad:
            return Loss(1.0, applied=False)
        error = inputs @ self.weights - targets
        self.weights -= self.learning_rate * inputs.T @ error / len(inputs)
        self.losses.append(float(np.mean(error**2)))
        return Loss(self.losses[-1])

    def evaluate(self, inputs):
        return {"y": inputs @ self.weights}


class StopAfter(Observer):
    def __init__(self, steps: int):
        self.steps = steps

    def on_step(self, history, images_per_second):
        self.steps -= 1

    def should_stop(self):
        return self.steps <= 0


def regression() -> Dataset:
    x = np.random.default_rng(0).standard_normal((23, 2))
    y = x @ np.array([[2.0], [-1.0]])
    return Dataset(Examples({"x": x[:18]}, y[:18]), Examples({"x": x[18:]}, y[18:]))


PLAN = Plan(batch=4, steps=14, seed=3, schedule=warmup(cosine(0.3, 12), 2))


def test_trains_and_records():
    step, history = LinearStep(), History()
    assert train(step, regression(), PLAN, history, Observer()) == "finished"
    assert len(history.losses) == 14 and history.losses[-1] < 0.1 * history.losses[0]
    assert [(e.epoch, e.step) for e in history.epochs] == [(1, 4), (2, 8), (3, 12), (4, 14)]
    assert history.epochs[1].loss == pytest.approx(np.mean(history.losses[4:8]))
    errors = [e.held_out["mean_squared_error"] for e in history.epochs]
    assert errors[-1] < errors[0] and history.held_out == history.epochs[-1].held_out


def test_learning_rate_follows_the_schedule():
    step = LinearStep()
    train(step, regression(), PLAN, History(), Observer())
    assert [rate for _, rate in step.calls] == [PLAN.schedule(i) for i in range(14)]


def test_epochs_have_different_orders():
    step = LinearStep()
    train(step, regression(), PLAN, History(), Observer())
    assert not np.array_equal(step.calls[0][0], step.calls[4][0])


def test_the_calls_of_a_step_share_its_examples():
    """Of a step that a plan makes of several calls the loss is the mean, the verdict the last."""
    plan, one, several = replace(PLAN, batch=2, accumulate=2), LinearStep(), LinearStep(bad={4, 7})
    histories = History(), History()
    train(one, regression(), PLAN, histories[0], Observer())
    assert train(several, regression(), plan, histories[1], Observer()) == "finished"
    calls = [inputs for inputs, _ in several.calls]
    assert len(calls) == 28 and [rate for _, rate in several.calls[::2]] == [
        r for _, r in one.calls
    ]
    for step, (expected, _) in enumerate(one.calls):
        np.testing.assert_array_equal(np.concatenate(calls[2 * step : 2 * step + 2]), expected)
    assert [math.isnan(loss) for loss in histories[1].losses[:5]] == [False] * 3 + [True, False]
    assert histories[1].losses[0] == pytest.approx(np.mean(several.losses[:2]))
    assert [epoch.step for epoch in histories[1].epochs] == [4, 8, 12, 14]


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 8, 13])
def test_resuming_is_bit_identical_to_not_stopping(stop):
    straight, expected = LinearStep(), History()
    train(straight, regression(), PLAN, expected, Observer())
    first, history = LinearStep(), History()
    assert train(first, regression(), PLAN, history, StopAfter(stop)) == "interrupted"
    assert len(history.losses) == stop
    second = LinearStep(first.weights)
    assert train(second, regression(), PLAN, history, Observer()) == "finished"
    assert history.losses == expected.losses
    assert [(e.step, e.loss, e.held_out) for e in history.epochs] == [
        (e.step, e.loss, e.held_out) for e in expected.epochs
    ]
    np.testing.assert_array_equal(second.weights, straight.weights)


def test_a_finished_run_takes_no_more_steps():
    step, history = LinearStep(), History([0.0] * 14)
    assert train(step, regression(), PLAN, history, Observer()) == "finished"
    assert step.calls == []


def test_skipped_steps_are_counted_and_left_out_of_the_mean():
    history = History()
    train(LinearStep(bad={1, 2}), regression(), PLAN, history, Observer())
    assert history.skipped == 2
    assert history.epochs[0].loss == pytest.approx((history.losses[0] + history.losses[3]) / 2)


@pytest.mark.parametrize("bad, outcome", [(PATIENCE, "diverged"), (PATIENCE - 1, "finished")])
def test_gives_up_after_many_skipped_steps(bad, outcome):
    plan = Plan(batch=4, steps=40, seed=0, schedule=lambda step: 0.1)
    history = History()
    assert (
        train(LinearStep(bad=set(range(5, 5 + bad))), regression(), plan, history, Observer())
        == outcome
    )
    assert len(history.losses) == (25 if outcome == "diverged" else 40)


class Queueing(LinearStep):
    """A step on a device that works beside the host."""

    def __call__(self, inputs, targets=None):
        return replace(super().__call__(inputs, targets), is_read=False)


@pytest.mark.parametrize("wait", [0.0, 100.0])
def test_losses_that_are_read_late_make_the_same_history(wait, monkeypatch):
    monkeypatch.setattr(run, "READ_DELAY_SECONDS", wait)
    histories = History(), History()
    told = []

    class Teller(Observer):
        def on_step(self, history, images_per_second):
            told.append((len(history.losses), images_per_second))

    for kind, history in zip((LinearStep, Queueing), histories, strict=True):
        step = kind(bad={1, 5})
        train(step, regression(), PLAN, history, Teller())
    assert np.array_equal(*(history.losses for history in histories), equal_nan=True)
    assert [e.loss for e in histories[0].epochs] == [e.loss for e in histories[1].epochs]
    assert [steps for steps, _ in told] == 2 * list(range(1, 15))
    assert all(speed > 0 for _, speed in told)


@dataclass
class Busy:
    """A clock, and a device that takes 5 seconds a step while a call takes 1."""

    now: float = 0.0
    free_at: float = 0.0
    learning_rate: float = 0.0

    def __call__(self, inputs, targets=None):
        self.now += 1
        self.free_at = max(self.free_at, self.now) + 5
        return BusyLoss(self, self.free_at)


@dataclass
class BusyLoss:
    step: Busy
    due: float
    applied: bool = True
    is_read: bool = False

    def __float__(self):
        self.step.now = max(self.step.now, self.due)
        return 1.0


@pytest.mark.parametrize("wait", [0.0, 3.0, 1000.0])
def test_the_speed_is_that_of_the_device(wait, monkeypatch):
    step, history = Busy(), History()
    monkeypatch.setattr(run, "READ_DELAY_SECONDS", wait)
    monkeypatch.setattr(run.time, "perf_counter", lambda: step.now)
    data = Dataset(Examples({"x": np.zeros((80, 2))}, np.zeros(80)))
    train(step, data, Plan(4, 40, 0, lambda step: 0.1), history, Observer())
    for epoch in history.epochs:  # where every loss is read, the device waits for the call
        assert epoch.images_per_second == pytest.approx(4 / (6 if wait == 0 else 5), rel=0.06)


@pytest.mark.parametrize("stop", [1, 3])
def test_an_interrupted_run_records_what_was_not_read_yet(stop, monkeypatch):
    monkeypatch.setattr(run, "READ_DELAY_SECONDS", 100.0)

    class Asked(Observer):
        asked = 0

        def should_stop(self):
            self.asked += 1
            return self.asked > stop

    history = History()
    assert train(Queueing(), regression(), PLAN, history, Asked()) == "interrupted"
    assert len(history.losses) == stop


def test_a_late_run_gives_up_too(monkeypatch):
    monkeypatch.setattr(run, "READ_DELAY_SECONDS", 100.0)
    plan = Plan(batch=4, steps=60, seed=0, schedule=lambda step: 0.1)
    history = History()
    bad = Queueing(bad=set(range(60)))
    assert train(bad, regression(), plan, history, Observer()) == "diverged"
    assert len(history.losses) == 20  # whole epochs of four


def test_without_held_out_examples():
    history = History()
    train(LinearStep(), Dataset(regression().train), PLAN, history, Observer())
    assert history.held_out == {}


def test_several_inputs_go_by_name():
    class Recorder(LinearStep):
        def __call__(self, inputs, targets=None):
            assert set(inputs) == {"a", "b"} and targets is None
            return Loss(0.0)

    data = Dataset(Examples({"a": np.zeros(8), "b": np.zeros(8)}))
    assert train(Recorder(), data, PLAN, History(), Observer()) == "finished"


def test_batch_larger_than_the_data():
    with pytest.raises(InputError, match="do not fill one batch of 19"):
        train(LinearStep(), regression(), Plan(19, 1, 0, lambda step: 0.1), History(), Observer())


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 7])
def test_accuracy_counts_each_example_once(batch):
    class Parrot:
        learning_rate = 0.0

        def evaluate(self, inputs):
            return {"logits": np.eye(3)[inputs]}

    examples = Examples({"x": np.array([0, 1, 2, 1, 0])}, np.array([0, 1, 2, 2, 2]))
    assert evaluate(Parrot(), examples, batch) == {"accuracy": 0.6}


@pytest.mark.parametrize("kind", [LinearStep, Queueing])
def test_a_run_is_saved_with_the_losses_of_all_steps_taken(kind, monkeypatch):
    """Also those that a device may still be busy with; and goes on from there."""
    monkeypatch.setattr(run, "READ_DELAY_SECONDS", 100.0)
    saves = {}

    class Saver(Observer):
        def save_is_due(self, steps):
            return steps in (3, 4, 10)

        def save(self, history):
            saves[len(history.losses)] = step.weights.copy(), copy.deepcopy(history)

    step, expected = kind(), History()
    assert train(step, regression(), PLAN, expected, Saver()) == "finished"
    assert list(saves) == [3, 4, 10]
    assert [len(history.epochs) for _, history in saves.values()] == [0, 0, 2]
    for weights, history in saves.values():
        resumed = kind(weights)
        assert train(resumed, regression(), PLAN, history, Observer()) == "finished"
        assert history.losses == expected.losses
        assert [(e.epoch, e.step, e.loss, e.held_out) for e in history.epochs] == [
            (e.epoch, e.step, e.loss, e.held_out) for e in expected.epochs
        ]
        np.testing.assert_array_equal(resumed.weights, step.weights)
