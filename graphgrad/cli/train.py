"""The command ``graphgrad train``."""

import argparse
import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from ..errors import ArgumentError, CheckpointError, OutputError
from ..lower.device import device_of
from ..lower.target import target
from ..models import resnet_digits
from ..report.progress import ProgressLine
from ..report.training import TrainingReport
from ..train.model_onnx import to_onnx
from ..train.run import History, Observer, Outcome, train
from ..train.step import TrainStep
from .checkpoints import Checkpoints, Saved
from .digests import file_digests
from .job import Job, Settings, make_job, new_settings, resumed_settings
from .output import OutputFolder, epoch_to_json
from .save_interval import SaveInterval
from .signals import exit_code, interruptible

StopSignal = Callable[[], signal.Signals | None]


@dataclass(frozen=True)
class Run:
    """A run of a job into a folder.

    Attributes
    ----------
    job : Job
    folder : OutputFolder
    facts : dict
        What each checkpoint, and the record, say of it beside its history.
    built_in : bytes or None
        The built-in network as ``model.onnx`` is to hold it.
    report : TrainingReport
    stop_signal : callable
        Gives the signal that asked to stop, if any did.
    """

    job: Job
    folder: OutputFolder
    facts: dict[str, Any]
    built_in: bytes | None
    report: TrainingReport
    stop_signal: StopSignal

    @property
    def resume(self) -> str:
        """The command that goes on with it."""
        return f"graphgrad train --resume --out {shlex.quote(str(self.folder.path))}"


class Saving:
    """The saving of a run: when it is due, and what is saved.

    Parameters
    ----------
    step : TrainStep
    checkpoints : Checkpoints
    run : dict
        What the run was started with.
    saved : Saved or None
        The checkpoint of a resumed run.
    write_record : callable
        Writes the history to where people look for it.
    """

    def __init__(
        self,
        step: TrainStep,
        checkpoints: Checkpoints,
        run: dict[str, Any],
        saved: Saved | None,
        write_record: Callable[[History], None],
    ):
        self._step = step
        self._checkpoints = checkpoints
        self._run = run
        self._write_record = write_record
        self._extent = (0, 0) if saved is None else _extent(saved.history)
        self._interval = SaveInterval(run["save_every"], self.steps)

    @property
    def steps(self) -> int:
        """How many steps are saved."""
        return self._extent[0]

    @property
    def each_epoch(self) -> bool:
        """Whether the end of an epoch is a time to save."""
        return self._interval.each_epoch

    def is_due(self, steps: int) -> bool:
        """Whether it is time to save a run of so many steps."""
        return self._interval.is_due(steps)

    def save(self, history: History) -> None:
        """Write the record, and a checkpoint if the last one is not the same.

        Of a run without a step there is nothing to save, and the files of an earlier run stay.
        """
        if not history.losses:
            return
        if self._extent != _extent(history):
            self._checkpoints.save(self._step, self._run, history)
            self._extent = _extent(history)
            self._interval.saved(self.steps)
        else:
            self._checkpoints.settle()
        self._write_record(history)


class Watcher(Observer):
    """An observer that shows progress, saves, and stops the run on a signal."""

    def __init__(
        self,
        line: ProgressLine,
        report: TrainingReport,
        stop_signal: Callable[[], signal.Signals | None],
        saving: Saving,
    ):
        self._line = line
        self._report = report
        self._stop_signal = stop_signal
        self._saving = saving

    def on_step(self, history: History, images_per_second: float) -> None:
        """Move the progress line."""
        self._line.step(history.losses[-1], images_per_second, history.held_out)

    def on_epoch(self, history: History) -> None:
        """Report the epoch, and save the run if that is due."""
        epoch = history.epochs[-1]
        self._line.epoch(epoch)
        if self._saving.each_epoch or self._saving.is_due(epoch.step):
            self.save(history)
        self._report.event("epoch", model=self._line.label, **epoch_to_json(epoch))

    def should_stop(self) -> bool:
        """Whether a signal asked for it."""
        return self._stop_signal() is not None

    def save_is_due(self, steps: int) -> bool:
        """Whether the interval of ``--save-every`` is over."""
        return self._saving.is_due(steps)

    def save(self, history: History) -> None:
        """Save the run."""
        self._saving.save(history)


def run(arguments: argparse.Namespace) -> int:
    """Train as the command line says and return the exit code."""
    folder = OutputFolder(Path(arguments.out))
    report = TrainingReport(arguments.json)
    SaveInterval(arguments.save_every)  # raises if it is none
    saved = None
    with contextlib.ExitStack() as stack:
        if arguments.resume:
            folder.checkpoints.check_present()
            stack.enter_context(folder.opened())
            saved = folder.checkpoints.read()
        started = {} if saved is None else saved.run
        settings = resumed_settings(started, arguments) if saved else new_settings(arguments)
        device_of(target(settings.target))  # before anything is read
        source = settings.model or _built_in(settings, folder, started)
        digests = file_digests(source, settings.data)
        if saved is not None:
            _check_digests(digests, started["digests"], settings, folder)
        job = make_job(settings, source)
        step = job.step(job.model)
        if saved is not None:
            step.load(saved.path)
        job.check_data(step)
        if saved is None:
            stack.enter_context(folder.opened())
        built_in = source.SerializeToString() if isinstance(source, onnx.ModelProto) else None
        if built_in is not None:
            folder.check_model(built_in)
        facts = {
            "settings": asdict(settings),
            "digests": digests,
            "save_every": arguments.save_every or started.get("save_every"),
        }
        stack.callback(report.close, folder.path)
        stop_signal = stack.enter_context(interruptible())
        return _train(Run(job, folder, facts, built_in, report, stop_signal), step, saved)


def _train(run: Run, step: TrainStep, saved: Saved | None) -> int:
    """Train the model and then, if asked for, its twin; write and tell the results."""
    job, folder, report = run.job, run.folder, run.report
    if saved is not None:
        report.resume(saved.path, len(saved.history.losses), saved.damaged)
    history = History() if saved is None else saved.history
    report.start(
        job.settings.model or "the digits ResNet",
        settings=asdict(job.settings),
        steps=job.plan.steps,
        done=len(history.losses),
        weights=len(job.wrt(job.model)),
        notes=job.model.notes,
        train=len(job.dataset.train),
        held_out=len(job.dataset.held_out or ()),
    )

    def write_record(history: History) -> None:
        folder.write_history(run.facts, history)
        if run.built_in is not None:
            folder.write_model(run.built_in)

    saving = Saving(step, folder.checkpoints, run.facts, saved, write_record)
    try:
        outcome = _train_one(run, step, history, saving, "")
        latest = history
        if outcome == "finished":
            to_onnx(job.model, step.params, step.state, folder.trained)
            drawn = folder.draw(history)
            report.finish(history, folder.written(drawn), drawn)
        if outcome == "finished" and job.twin is not None:
            outcome, latest = _train_twin(run, history, is_resumed=saved is not None)
    except (CheckpointError, OutputError) as error:
        if not saving.steps:
            raise
        raise type(error)(f"{error}; step {saving.steps} is saved: {run.resume}") from error
    number = run.stop_signal()
    if outcome == "interrupted" and number is not None:
        resume = run.resume if saving.steps else None
        report.interrupted(latest, job.plan.steps, number.name, folder.path, resume)
        return exit_code(number)
    if outcome == "diverged":
        report.diverged(latest)
    return int(outcome == "diverged")


def _train_twin(run: Run, history: History, is_resumed: bool) -> tuple[Outcome, History]:
    """Train the twin of a model that is trained; its outcome and history."""
    assert run.job.twin is not None
    step, checkpoints = run.job.step(run.job.twin), run.folder.twin_checkpoints
    saved = checkpoints.read_of(run.facts) if is_resumed else None
    if saved is not None:
        step.load(saved.path)
    twin_history = History() if saved is None else saved.history

    def write_record(twin_history: History) -> None:
        run.folder.write_history(run.facts, history, twin_history)

    saving = Saving(step, checkpoints, run.facts, saved, write_record)
    outcome = _train_one(run, step, twin_history, saving, "frozen convolutions")
    run.report.frozen_twin(twin_history)
    return outcome, twin_history


def _train_one(run: Run, step: TrainStep, history: History, saving: Saving, label: str) -> Outcome:
    """Train a model to the end of its plan, or until a signal comes, and save it."""
    steps = run.job.plan.steps
    with ProgressLine(steps, sys.stderr, len(history.losses), label) as line:
        watcher = Watcher(line, run.report, run.stop_signal, saving)
        outcome = train(step, run.job.dataset, run.job.plan, history, watcher)
    saving.save(history)  # an interrupted run may have ended within an epoch
    return outcome


def _built_in(
    settings: Settings, folder: OutputFolder, started: Mapping[str, Any]
) -> onnx.ModelProto | Path:
    """The built-in network; for a run that another version has started, the file that it wrote."""
    network = resnet_digits(seed=settings.seed)
    digests = file_digests(network, settings.data)
    is_same = not started or digests["model"] == started["digests"]["model"]
    return network if is_same else folder.model


def _check_digests(
    digests: Mapping[str, str],
    started: Mapping[str, str],
    settings: Settings,
    folder: OutputFolder,
) -> None:
    """Raise unless the files that can be read are those that a run was started with.

    Raises
    ------
    ArgumentError
        Names those that differ.
    """
    paths = {"data": settings.data or "the digits"}
    differences = [
        f"the {name} ({paths.get(name, settings.model or folder.model)}) has the SHA-256 "
        f"{digest[:12]}…, not {started.get(name, 'none')[:12]}… as when the run was started"
        for name, digest in digests.items()
        if digest != started.get(name)
    ]
    if differences:
        raise ArgumentError(
            f"cannot resume the run in {folder.path}: {'; '.join(differences)}; bring back the old "
            "file, name it on the command line if it has moved, or start without --resume"
        )


def _extent(history: History) -> tuple[int, int]:
    """How many steps and epochs a history holds."""
    return len(history.losses), len(history.epochs)
