"""The training loop: batches through a step, a schedule, a history, and a way to stop."""

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Literal, Protocol

import numpy as np

from ..errors import InputError
from .data import Dataset, Examples, batch_count, batches, padded_batches
from .schedule import Schedule

PATIENCE = 20
"""Skipped steps in a row after which a run is given up as diverged."""

Outcome = Literal["finished", "interrupted", "diverged"]
Inputs = np.ndarray | dict[str, np.ndarray]


READ_DELAY_SECONDS = 0.1
"""Seconds after which the losses of steps that a device may still be busy with are waited for."""


class Loss(Protocol):
    """The part of a step's loss that the loop uses; see `StepLoss`."""

    @property
    def applied(self) -> bool:
        """Whether the step changed anything: loss and gradients were finite."""

    @property
    def is_read(self) -> bool:
        """Whether asking waits for nothing."""

    def __float__(self) -> float: ...


class TrainingStep(Protocol):
    """The part of a training step that the loop uses; `TrainStep` has it."""

    learning_rate: float

    def __call__(self, inputs: Inputs, targets: np.ndarray | None = None) -> Loss:
        """Take one step and return the loss."""

    def evaluate(self, inputs: Inputs) -> Mapping[str, np.ndarray]:
        """The outputs of the inference form by name."""


@dataclass(frozen=True)
class Plan:
    """How long and in which order to train. Equal plans give equal runs.

    Attributes
    ----------
    batch, steps : int
        Examples per call of the step, and steps of the whole run.
    seed : int
        Decides, with the number of the epoch, the order of the examples.
    schedule : Schedule
        Learning rate of each step, counted from zero.
    accumulate : int
        Calls that make a step, as of `train_step`: each gets the next of its examples.
    """

    batch: int
    steps: int
    seed: int
    schedule: Schedule
    accumulate: int = 1

    @property
    def examples(self) -> int:
        """Examples per step."""
        return self.batch * self.accumulate


@dataclass(frozen=True)
class Epoch:
    """The measures taken at the end of an epoch.

    Attributes
    ----------
    epoch, step : int
        How many of each are done.
    loss : float
        Mean of the epoch's finite training losses; NaN if there was none.
    held_out : dict of str to float
        ``accuracy`` or ``mean_squared_error`` on the held-out examples; empty without any.
    images_per_second : float
        Examples trained on per second: by the time from one reading of losses to the next, shared
        among the steps that were read, and of that the median over the steps.
    """

    epoch: int
    step: int
    loss: float
    held_out: dict[str, float]
    images_per_second: float


@dataclass
class History:
    """The record of a run: one loss per step (NaN where it was skipped), one entry per epoch."""

    losses: list[float] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def skipped(self) -> int:
        """How many steps changed nothing, because loss or gradients were not finite."""
        return sum(not math.isfinite(loss) for loss in self.losses)

    @property
    def skipped_at_end(self) -> int:
        """How many of the last steps in a row were skipped."""
        skipped = (not math.isfinite(loss) for loss in reversed(self.losses))
        return sum(takewhile(bool, skipped))

    @property
    def diverged(self) -> bool:
        """Whether the last `PATIENCE` steps were all skipped."""
        return self.skipped_at_end >= PATIENCE

    @property
    def ended_skipping(self) -> bool:
        """Whether the last `PATIENCE` steps, or more than half of a run, were all skipped."""
        return self.skipped_at_end >= min(PATIENCE, len(self.losses) // 2 + 1)

    @property
    def held_out(self) -> dict[str, float]:
        """The latest measure on the held-out examples; empty before the first."""
        return self.epochs[-1].held_out if self.epochs else {}


class Observer:
    """Told of each step and epoch; asked whether to stop, and when to save. Does nothing itself."""

    def on_step(self, history: History, images_per_second: float) -> None:
        """Be told that a step is done."""

    def on_epoch(self, history: History) -> None:
        """Be told that an epoch, or the last part of one, is done and recorded."""

    def should_stop(self) -> bool:
        """Whether to leave the rest of the run for later."""
        return False

    def save_is_due(self, steps: int) -> bool:
        """Whether to save now that so many steps are taken; asked after each."""
        return False

    def save(self, history: History) -> None:
        """Save the run; the history holds as many steps as the training step has taken."""


def train(
    step: TrainingStep, dataset: Dataset, plan: Plan, history: History, observer: Observer
) -> Outcome:
    """Train until the plan is done, the observer stops it, or every step is skipped.

    On a device that works beside the host, a loss is recorded, and a run of skipped steps noticed,
    up to `READ_DELAY_SECONDS` seconds late.

    Parameters
    ----------
    step : TrainingStep
        Holds the parameters; its ``learning_rate`` is set before each step.
    dataset : Dataset
        Each epoch shuffles the training examples and ends with the held-out ones.
    plan : Plan
        Batch, steps, seed and schedule.
    history : History
        Appended to. A history with entries continues a run: with the step's state loaded as it
        was then, the rest is bit-identical to a run that never stopped.
    observer : Observer
        Told of progress.

    Returns
    -------
    'finished', 'interrupted' or 'diverged'

    Raises
    ------
    InputError
        There are fewer training examples than fill one batch.
    """
    per_epoch = batch_count(dataset.train, plan.examples)
    stopwatch = _Stopwatch(history)
    seconds: list[float] = []
    while True:
        # Also where a resumed run was saved between the last step of an epoch and its summary.
        if _lacks_summary(history, per_epoch, plan.steps):
            held_out = evaluate(step, dataset.held_out, plan.batch) if dataset.held_out else {}
            history.epochs.append(
                _summary(history.losses, per_epoch, held_out, _speed(plan.examples, seconds))
            )
            stopwatch.lap()
            observer.on_epoch(history)
        if len(history.losses) >= plan.steps:
            return "diverged" if history.ended_skipping else "finished"
        seconds = []
        outcome = _rest_of_epoch(
            step, dataset.train, plan, history, observer, seconds=seconds, stopwatch=stopwatch
        )
        stopwatch.lap()
        if outcome != "finished":
            return outcome


def _lacks_summary(history: History, per_epoch: int, steps: int) -> bool:
    """Whether an epoch, or the last part of one, is over and has no entry in the history."""
    done = len(history.losses)
    is_over = done > 0 and (done % per_epoch == 0 or done >= steps)
    return is_over and (not history.epochs or history.epochs[-1].step < done)


class _Stopwatch:
    """A clock that adds the time which passes to a history."""

    def __init__(self, history: History):
        self._history = history
        self._since = time.perf_counter()

    def lap(self) -> None:
        """Add the time since the last lap."""
        now = time.perf_counter()
        self._history.seconds += now - self._since
        self._since = now


def evaluate(step: TrainingStep, examples: Examples, batch: int) -> dict[str, float]:
    """Judge a model's first output on every example, each counted exactly once.

    Parameters
    ----------
    step : TrainingStep
        Its inference form is run.
    examples : Examples
        With labels (N, …), for outputs (N, classes, …), or with values shaped as the outputs.
    batch : int
        Examples per evaluation; a last batch that they do not fill is padded.

    Returns
    -------
    dict of str to float
        ``accuracy`` for labels, ``mean_squared_error`` for values, nothing without targets.
    """
    if examples.targets is None:
        return {}
    outputs = [
        next(iter(step.evaluate(bound(padded_batch)).values()))[:count]
        for padded_batch, count in padded_batches(examples, batch)
    ]
    predicted = np.concatenate(outputs)
    if examples.targets.dtype.kind in "iu":
        classes = predicted.shape[1]
        out_of_range = np.flatnonzero((examples.targets < 0) | (examples.targets >= classes))
        if len(out_of_range):
            raise InputError(
                f"the held-out data have {len(out_of_range)} label(s) outside 0 to {classes - 1}, "
                f"which are the model's {classes} classes"
            )
        return {"accuracy": float(np.mean(predicted.argmax(axis=1) == examples.targets))}
    difference = predicted.astype(np.float64) - examples.targets
    return {"mean_squared_error": float(np.mean(difference**2))}


def _rest_of_epoch(
    step: TrainingStep,
    examples: Examples,
    plan: Plan,
    history: History,
    observer: Observer,
    *,
    seconds: list[float],
    stopwatch: _Stopwatch,
) -> Outcome:
    """Take the steps that the current epoch still lacks, and append the seconds of each."""
    # A resumed run goes on within its epoch: the batches of the steps done are passed over.
    epoch, steps_done = divmod(len(history.losses), batch_count(examples, plan.examples))
    end = steps_done + plan.steps - len(history.losses)
    epoch_batches = batches(examples, plan.examples, seed=plan.seed, epoch=epoch)
    first_step, unread_losses = len(history.losses), _Unread(seconds)
    outcome: Outcome = "finished"
    for index, batch in enumerate(islice(epoch_batches, steps_done, end), first_step):
        if observer.should_stop():
            outcome = "interrupted"
            break
        step.learning_rate = plan.schedule(index)
        unread_losses.add(_take_step(step, batch, plan))
        _record(unread_losses.due(), history, observer, _speed(plan.examples, seconds))
        if history.diverged:
            return "diverged"
        if observer.save_is_due(index + 1):
            _record(unread_losses.all(), history, observer, _speed(plan.examples, seconds))
            stopwatch.lap()
            observer.save(history)
    _record(unread_losses.all(), history, observer, _speed(plan.examples, seconds))
    return "diverged" if history.diverged else outcome


def _take_step(step: TrainingStep, examples: Examples, plan: Plan) -> Loss:
    """Take one step, in as many calls as the plan says."""
    if plan.accumulate == 1:
        return step(bound(examples), examples.targets)
    indices_of_calls = np.arange(len(examples)).reshape(plan.accumulate, plan.batch)
    micro_batches = map(examples.take, indices_of_calls)
    return _MeanLoss(
        [step(bound(micro_batch), micro_batch.targets) for micro_batch in micro_batches]
    )


@dataclass(frozen=True)
class _MeanLoss:
    """The loss of a step of several equal micro-batches."""

    losses: list[Loss]

    @property
    def applied(self) -> bool:
        """Whether the step changed anything, which its last call decides."""
        return self.losses[-1].applied

    @property
    def is_read(self) -> bool:
        """Whether asking waits for nothing."""
        return all(loss.is_read for loss in self.losses)

    def __float__(self) -> float:
        return statistics.fmean(map(float, self.losses))


class _Unread:
    """A queue of losses of steps that a device may still be busy with.

    Parameters
    ----------
    seconds : list of float
        Appended to, for each loss that is read. How long a call takes says nothing of how long a
        device that works beside the host computes; only a reading waits for it.
    """

    def __init__(self, seconds: list[float]) -> None:
        self._losses: list[Loss] = []
        self._seconds = seconds
        self._since = time.perf_counter()

    def add(self, loss: Loss) -> None:
        """Append the loss of a step that was just taken."""
        self._losses.append(loss)

    def due(self) -> list[float]:
        """Take all losses out of the queue, as `all`, if it is time to read them; else none.

        It is time if they can be read without waiting for the device, or were delayed for long.
        """
        waited = time.perf_counter() - self._since
        return self.all() if self._losses[0].is_read or waited > READ_DELAY_SECONDS else []

    def all(self) -> list[float]:
        """Take all losses out of the queue, waiting for the device; NaN where nothing changed."""
        losses = [float(loss) if loss.applied else math.nan for loss in self._losses]
        now = time.perf_counter()
        self._seconds += [(now - self._since) / len(losses)] * len(losses) if losses else []
        self._losses.clear()
        self._since = now
        return losses


def _record(losses: list[float], history: History, observer: Observer, speed: float) -> None:
    """Append losses to the history; the observer is told of steps until the run has diverged."""
    for loss in losses:
        history.losses.append(loss)
        if not history.diverged:
            observer.on_step(history, speed)


def _speed(batch: int, seconds: list[float]) -> float:
    """Examples per second of a typical step: the first one of a run also compiles."""
    return batch / statistics.median(seconds) if seconds else math.nan


def bound(examples: Examples) -> Inputs:
    """The inputs as a step takes them: alone, or by name if there are several."""
    if len(examples.inputs) == 1:
        return next(iter(examples.inputs.values()))
    return examples.inputs


def _summary(
    losses: list[float], per_epoch: int, held_out: dict[str, float], speed: float
) -> Epoch:
    """The entry of the epoch that ends with the last of the losses."""
    # The last epoch of a run may be a partial one, so that its number is rounded up.
    epoch = math.ceil(len(losses) / per_epoch)
    finite = [loss for loss in losses[(epoch - 1) * per_epoch :] if math.isfinite(loss)]
    mean = sum(finite) / len(finite) if finite else math.nan
    return Epoch(epoch, len(losses), mean, held_out, speed)
