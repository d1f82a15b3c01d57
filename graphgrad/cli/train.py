"""The command ``graphgrad train``."""

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import ArgumentError, CheckpointError
from ..frontend.model import Model
from ..frontend.onnx_export import to_onnx
from ..frontend.onnx_import import from_onnx
from ..lower.device import device_of
from ..lower.target import target
from ..models import resnet_digits
from ..report.progress import ProgressLine
from ..report.training import TrainingReport
from ..train.data import Dataset, TargetKind, batch_count, batches, digits, load_npz
from ..train.loss import LOSSES
from ..train.run import History, Observer, Outcome, Plan, bound, train
from ..train.step import TrainStep, train_step
from .optimizer import DEFAULTS, build_optimizer, build_schedule
from .output import OutputFolder, epoch_to_json

Save = Callable[[], None]
EXIT_CODES: dict[Outcome, int] = {"finished": 0, "diverged": 1, "interrupted": 130}


@dataclass(frozen=True)
class Settings:
    """The settings that decide a run. A resumed run has those of the run that it continues."""

    model: str | None = None
    data: str | None = None
    loss: str = "cross_entropy"
    optimizer: str = "sgd"
    lr: float = 0.2
    schedule: str = "cosine"
    momentum: float = 0.9
    nesterov: bool | None = None  # None: wherever there is momentum
    weight_decay: float = 5e-3
    clip_norm: float | None = None
    epochs: int = 30
    steps: int | None = None
    batch: int = 32
    accumulate: int = 1
    wrt: list[str] = field(default_factory=list)
    freeze: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    seed: int = 0
    target: str = "llvm"
    rules: str = "auto"
    compare_frozen: bool = False


@dataclass(frozen=True)
class Job:
    """A run that is ready to start: its settings are checked, its model and data are read."""

    settings: Settings
    model: Model
    twin: Model | None
    dataset: Dataset
    plan: Plan


class Watcher(Observer):
    """An observer that shows progress, saves after each epoch, and stops the run on Ctrl-C."""

    def __init__(
        self,
        line: ProgressLine,
        report: TrainingReport,
        interrupted: Callable[[], bool],
        save: Save | None,
    ):
        self._line = line
        self._report = report
        self._interrupted = interrupted
        self._save = save

    def on_step(self, history: History, images_per_second: float) -> None:
        """Move the progress line."""
        self._line.step(history.losses[-1], images_per_second, history.held_out)

    def on_epoch(self, history: History) -> None:
        """Report the epoch and save the run."""
        epoch = history.epochs[-1]
        self._line.epoch(epoch)
        if self._save is not None:
            self._save()
        self._report.event("epoch", model=self._line.label, **epoch_to_json(epoch))

    def should_stop(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._interrupted()


def run(arguments: argparse.Namespace) -> int:
    """Train as the command line says and return the exit code."""
    folder = OutputFolder(Path(arguments.out))
    settings = _resumed_settings(folder, arguments) if arguments.resume else _settings(arguments)
    device_of(target(settings.target))  # before anything is read
    built_in = None
    if settings.model is None and not arguments.resume:
        built_in = resnet_digits(seed=settings.seed)
    job = _job(settings, built_in or settings.model or folder.model)
    step = _training_step(job, job.model)
    history = History()
    if arguments.resume:
        step.load(folder.checkpoint)
        history = folder.read_history(step.steps)
    _check_data(step, job)
    folder.create()
    if built_in is not None:
        folder.write_model(built_in.SerializeToString())
    report = TrainingReport(arguments.json)
    report.start(
        settings.model or "the digits ResNet",
        settings=asdict(settings),
        steps=job.plan.steps,
        done=len(history.losses),
        weights=len(_wrt(job, job.model) or job.model.trainable()),
        notes=job.model.notes,
        train=len(job.dataset.train),
        held_out=len(job.dataset.held_out or ()),
    )
    with interruptible() as interrupted:
        return _train(job, step, history, folder=folder, report=report, interrupted=interrupted)


def _train(
    job: Job,
    step: TrainStep,
    history: History,
    *,
    folder: OutputFolder,
    report: TrainingReport,
    interrupted: Callable[[], bool],
) -> int:
    """Train the model and then, if asked for, its twin; write and tell the results."""

    def train_one(step: TrainStep, history: History, label: str, save: Save | None) -> Outcome:
        with ProgressLine(job.plan.steps, sys.stderr, len(history.losses), label) as line:
            watcher = Watcher(line, report, interrupted, save)
            return train(step, job.dataset, job.plan, history, watcher)

    def save(twin: History | None = None) -> None:
        folder.write_history(asdict(job.settings), history, twin)
        step.save(folder.checkpoint)

    outcome = train_one(step, history, "", save)
    save()  # an interrupted run may have ended within an epoch
    latest = history
    if outcome == "finished":
        to_onnx(job.model, step.params, step.state, folder.trained)
        drawn = folder.draw(history)
        report.finish(history, folder.written(drawn), drawn)
    if outcome == "finished" and job.twin is not None:
        latest = History()
        outcome = train_one(_training_step(job, job.twin), latest, "frozen convolutions", None)
        save(latest)
        report.frozen_twin(latest)
    if outcome == "interrupted":
        resume = f"graphgrad train --resume --out {shlex.quote(str(folder.path))}"
        report.interrupted(latest, job.plan.steps, resume)
    elif outcome == "diverged":
        report.diverged(latest)
    return EXIT_CODES[outcome]


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed; pressed again, it stops at once."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    previous = signal.signal(signal.SIGINT, receive)
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGINT, previous)


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line names."""
    all_settings = {setting.name: getattr(arguments, setting.name) for setting in fields(Settings)}
    settings = {name: value for name, value in all_settings.items() if value is not None}
    for name in settings.keys() & {"model", "data"}:
        settings[name] = str(Path(settings[name]).resolve())
    return settings


def _settings(arguments: argparse.Namespace) -> Settings:
    """The settings of a new run: those given, else those of its optimizer, else the defaults."""
    command_line = _given(arguments)
    settings = Settings(**{**DEFAULTS[command_line.get("optimizer", "sgd")], **command_line})
    if settings.data is not None and settings.model is None:
        raise ArgumentError(
            "--data is given without a model: the built-in network is for the built-in digits; "
            "name an ONNX file to train on your data"
        )
    return settings


def _resumed_settings(folder: OutputFolder, arguments: argparse.Namespace) -> Settings:
    """The settings of the run in a folder; `ArgumentError` if the command line has others."""
    stored = folder.read_settings()
    for name, value in _given(arguments).items():
        if stored.get(name) != value:
            raise ArgumentError(
                f"{name} is {value!r}, but the run in {folder.path} has {stored.get(name)!r}; "
                "a resumed run keeps its settings: leave it out, or start without --resume"
            )
    try:
        return Settings(**stored)
    except TypeError as error:
        raise CheckpointError(f"the settings in {folder.history} are not known: {error}") from error


def _job(settings: Settings, source: Any) -> Job:
    """Read and check everything that a run needs; `source` is the model's file or what it holds."""
    model = _freeze_matching(from_onnx(source, constants=settings.constants), settings.freeze)
    dataset = _dataset(settings, model)
    twin = _freeze_convolutions(model) if settings.compare_frozen else None
    return Job(settings, model, twin, dataset, _plan(settings, dataset))


def _dataset(settings: Settings, model: Model) -> Dataset:
    """The data to train on: a file's, or the digits."""
    has_several_inputs = len(model.inputs) > 1
    if settings.data is None:
        if has_several_inputs:
            raise ArgumentError(
                f"the model has the inputs {', '.join(model.inputs)}, and the built-in digits "
                "only one array: give --data with one array per input"
            )
        return digits()
    names = model.inputs if has_several_inputs else ["x"]
    targets: TargetKind | None = None
    if settings.loss not in model.outputs:
        built_in_loss = LOSSES.get(settings.loss)
        targets = (
            "values" if built_in_loss is not None and not built_in_loss.takes_labels else "labels"
        )
    return load_npz(settings.data, inputs=names, targets=targets)


def _check_data(step: TrainStep, job: Job) -> None:
    """Raise unless the model takes a batch of the data."""
    first_batch = next(batches(job.dataset.train, job.plan.batch, seed=job.plan.seed, epoch=0))
    step.check(bound(first_batch), first_batch.targets)


def _plan(settings: Settings, dataset: Dataset) -> Plan:
    """How long and with which learning rates to train."""
    per_epoch = batch_count(dataset.train, settings.batch * settings.accumulate)
    steps = settings.epochs * per_epoch if settings.steps is None else settings.steps
    schedule = build_schedule(settings, steps, per_epoch)
    return Plan(settings.batch, steps, settings.seed, schedule, settings.accumulate)


def _freeze_matching(model: Model, patterns: Sequence[str]) -> Model:
    """The model with the weights frozen that the patterns match."""
    model = model.freeze(*_matching(model, "--freeze", patterns))
    if not model.trainable():
        raise ArgumentError("no weight is left to train; freeze fewer with --freeze")
    return model


def _matching(model: Model, option: str, patterns: Sequence[str]) -> list[str]:
    """The names of the weights that the patterns of an option match."""
    names: dict[str, None] = {}
    for pattern in patterns:
        matched = model.matching(pattern)
        if not matched:
            raise ArgumentError(
                f"{option} {pattern} matches no weight; the weights are {', '.join(model.params)}"
            )
        names.update(dict.fromkeys(matched))
    return list(names)


def _freeze_convolutions(model: Model) -> Model:
    """The twin of a model: the same weights, of which those of convolutions do not train."""
    nodes = model.proto.graph.node if model.proto is not None else []
    convolutions = [node for node in nodes if node.op_type.startswith("Conv")]
    weights = {name for node in convolutions for name in node.input[1:]} & set(model.trainable())
    twin = model.freeze(*weights)
    if not weights or not twin.trainable():
        raise ArgumentError(
            "--compare-frozen compares with a twin whose convolutions do not train; this model "
            "has no convolution that trains, or nothing else that does"
        )
    return twin


def _wrt(job: Job, model: Model) -> list[str] | None:
    """The names of the weights that train in a run's model, or in its twin; None for all."""
    if not job.settings.wrt:
        return None
    names = _matching(model, "--wrt", job.settings.wrt)
    if model is job.twin:  # the rest is checked, against --freeze, where the step is made
        names = [name for name in names if name not in model.frozen - job.model.frozen]
    return names


def _training_step(job: Job, model: Model) -> TrainStep:
    """The training step of a run's model, or of its twin."""
    settings = job.settings
    return train_step(
        model,
        settings.loss,
        build_optimizer(settings),
        _wrt(job, model),
        target=settings.target,
        accumulate=settings.accumulate,
        seed=settings.seed,
        rules=settings.rules,
    )
