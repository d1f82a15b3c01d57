"""The command ``graphgrad train``."""

import argparse
import fnmatch
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import Any

import onnx

import graphgrad as gg

from .cli_output import OutputFolder, epoch_to_json
from .errors import ArgumentError, CheckpointError
from .models import resnet_digits
from .report.curve import sparkline
from .report.progress import ProgressLine, show
from .train.data import Dataset, batch_count, digits, load_npz
from .train.run import PATIENCE, History, Observer, Outcome, Plan, train
from .train.schedule import constant, warmup_cosine

EXIT_CODES: dict[Outcome, int] = {"finished": 0, "diverged": 1, "interrupted": 130}


@dataclass(frozen=True)
class Settings:
    """What decides a run. A resumed run has those of the run that it continues."""

    model: str | None = None
    data: str | None = None
    loss: str = "cross_entropy"
    optimizer: str = "sgd"
    lr: float = 0.2
    schedule: str = "cosine"
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-3
    epochs: int = 30
    steps: int | None = None
    batch: int = 32
    freeze: list[str] = field(default_factory=list)
    seed: int = 0
    target: str = "llvm"
    compare_frozen: bool = False


@dataclass(frozen=True)
class Job:
    """A run whose settings were found good: nothing was computed yet."""

    settings: Settings
    model: gg.Model
    dataset: Dataset
    plan: Plan
    trainable: list[str]
    twin_trainable: list[str] | None


def run(arguments: argparse.Namespace) -> int:
    """Train as the command line says and return the exit code."""
    folder = OutputFolder(Path(arguments.out))
    settings = _resumed_settings(folder, arguments) if arguments.resume else _settings(arguments)
    folder.create()
    if settings.model is None and not arguments.resume:
        onnx.save(resnet_digits(seed=settings.seed), folder.model)
    job = _job(settings, folder)
    step = _training_step(job, job.trainable)
    history = History()
    if arguments.resume:
        history = folder.read_history(int(step.load(folder.checkpoint)["steps"]))
    with interruptible() as interrupted:
        return _train(job, step, history, folder, Report(arguments.json), interrupted)


def _train(
    job: Job,
    step: gg.TrainStep,
    history: History,
    folder: OutputFolder,
    report: "Report",
    interrupted: Callable[[], bool],
) -> int:
    """Train the model and then, if asked for, its twin; write and tell the results."""

    def save(twin: History | None = None) -> None:
        folder.write_history(asdict(job.settings), history, twin)
        step.save(folder.checkpoint, {"steps": str(len(history.losses))})

    report.start(job, len(history.losses))
    outcome = report.watch(job, step, history, interrupted, save)
    save()
    if outcome == "finished" and job.twin_trainable is not None:
        twin = History()
        twin_step = _training_step(job, job.twin_trainable)
        outcome = report.watch(job, twin_step, twin, interrupted, label="frozen convolutions")
        save(twin)
        report.measure("frozen_twin", "with frozen convolutions", twin)
    if outcome == "finished":
        gg.to_onnx(job.model, step.params, step.state, folder.trained)
        report.finish(history, folder, folder.draw(history))
    elif outcome == "interrupted":
        report.interrupted(history, job.plan, folder)
    else:
        report.diverged(history)
    return EXIT_CODES[outcome]


class Watcher(Observer):
    """Shows progress, saves at the end of each epoch, and stops when asked to."""

    def __init__(
        self,
        line: ProgressLine,
        report: "Report",
        interrupted: Callable[[], bool],
        save: Callable[[], None] | None,
        label: str,
    ):
        self._line = line
        self._report = report
        self._interrupted = interrupted
        self._save = save
        self._label = label

    def on_step(self, history: History, images_per_second: float) -> None:
        """Move the progress line."""
        self._line.step(history.losses[-1], images_per_second, history.held_out)

    def on_epoch(self, history: History) -> None:
        """Report the epoch and save the run."""
        epoch = history.epochs[-1]
        self._line.epoch(epoch)
        self._report.event("epoch", label=self._label, **epoch_to_json(epoch))
        if self._save is not None:
            self._save()

    def should_stop(self) -> bool:
        """Return whether Ctrl-C was pressed."""
        return self._interrupted()


class Report:
    """Tells what happens: text for people, or one JSON object per line on standard output."""

    def __init__(self, as_json: bool):
        self._as_json = as_json

    def event(self, event: str, **content: Any) -> None:
        """Write one JSON line, if those are wanted."""
        if self._as_json:
            print(json.dumps({"event": event, **content}, allow_nan=False), flush=True)

    def text(self, text: str) -> None:
        """Write text, unless JSON is wanted; what the terminal cannot show becomes a question."""
        if not self._as_json:
            encoding = sys.stdout.encoding or "utf-8"
            print(text.encode(encoding, "replace").decode(encoding), flush=True)

    def start(self, job: Job, done: int) -> None:
        """Say what is about to be trained."""
        examples = len(job.dataset.train)
        held_out = len(job.dataset.held_out) if job.dataset.held_out else 0
        self.event(
            "start",
            settings=asdict(job.settings),
            steps=job.plan.steps,
            done=done,
            train=examples,
            held_out=held_out,
            trainable=job.trainable,
        )
        self.text(
            f"training {job.settings.model or 'the digits ResNet'}: {len(job.trainable)} weights, "
            f"{examples} examples ({held_out} held out), steps {done} to {job.plan.steps}"
        )

    def watch(
        self,
        job: Job,
        step: gg.TrainStep,
        history: History,
        interrupted: Callable[[], bool],
        save: Callable[[], None] | None = None,
        label: str = "",
    ) -> Outcome:
        """Train with a progress line on standard error."""
        line = ProgressLine(job.plan.steps, sys.stderr, len(history.losses), label)
        watcher = Watcher(line, self, interrupted, save, label)
        try:
            return train(step, job.dataset, job.plan, history, watcher)
        finally:
            line.close()

    def measure(self, event: str, label: str, history: History) -> None:
        """Tell the final held-out measures of a run."""
        self.event(event, held_out=history.held_out, seconds=round(history.seconds, 3))
        for name, value in history.held_out.items():
            self.text(f"{label}: held-out {name.replace('_', ' ')} {show(name, value)}")

    def finish(self, history: History, folder: OutputFolder, drawn: bool) -> None:
        """Tell the result and where it is."""
        written = [folder.trained, folder.history, folder.checkpoint]
        written += [folder.picture] if drawn else []
        self.event(
            "done",
            held_out=history.held_out,
            steps=len(history.losses),
            skipped_steps=history.skipped,
            seconds=round(history.seconds, 3),
            files=[str(path) for path in written],
        )
        for name, value in history.held_out.items():
            self.text(f"held-out {name.replace('_', ' ')} {show(name, value)}")
        skipped = f", {history.skipped} skipped" if history.skipped else ""
        self.text(f"{len(history.losses)} steps{skipped} in {history.seconds:.1f} s")
        self.text(f"loss {sparkline(history.losses)}")
        self.text(f"wrote {', '.join(map(str, written))}")
        if not drawn:
            self.text("for the curve as a picture: pip install 'graphgrad[plot]'")

    def interrupted(self, history: History, plan: Plan, folder: OutputFolder) -> None:
        """Say how to go on."""
        command = f"graphgrad train --resume --out {folder.path}"
        self.event("interrupted", steps=len(history.losses), of=plan.steps, resume=command)
        self.text(
            f"stopped after step {len(history.losses)} of {plan.steps}; go on with: {command}"
        )

    def diverged(self, history: History) -> None:
        """Say that the run failed, and what may help."""
        steps = len(history.losses)
        message = (
            f"the loss was not finite in each of the last {PATIENCE} steps (now at step {steps}), "
            "so the run was given up; those steps changed nothing. Lower --lr, or look for "
            "values in the data that are not finite"
        )
        self.event("diverged", steps=steps, message=message)
        print(f"graphgrad: {message}", file=sys.stderr)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a question that can be asked; a second one stops at once."""
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
    """Return the settings that the command line names."""
    named = {setting.name: getattr(arguments, setting.name) for setting in fields(Settings)}
    given = {name: value for name, value in named.items() if value is not None}
    for path in given.keys() & {"model", "data"}:
        given[path] = str(Path(given[path]).resolve())
    return given


def _settings(arguments: argparse.Namespace) -> Settings:
    settings = Settings(**_given(arguments))
    if settings.data is not None and settings.model is None:
        raise ArgumentError(
            "--data is given without a model: the built-in network is for the built-in digits; "
            "name an ONNX file to train on your data"
        )
    return settings


def _resumed_settings(folder: OutputFolder, arguments: argparse.Namespace) -> Settings:
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


def _job(settings: Settings, folder: OutputFolder) -> Job:
    """Read and check everything that a run needs."""
    path = settings.model or str(folder.model)
    declared = gg.from_onnx(path)
    dataset = _dataset(settings, declared)
    arrays = list(dataset.train.inputs.values())
    shapes = {
        name: (settings.batch, *array.shape[1:])
        for name, array in zip(declared.inputs, arrays, strict=True)
    }
    model = gg.from_onnx(path, shapes=shapes)
    trainable = _trainable(model, settings.freeze)
    twin = _without_convolutions(model, trainable) if settings.compare_frozen else None
    return Job(settings, model, dataset, _plan(settings, dataset), trainable, twin)


def _dataset(settings: Settings, model: gg.Model) -> Dataset:
    several = len(model.inputs) > 1
    if settings.data is None:
        if several:
            raise ArgumentError(
                f"the model has the inputs {', '.join(model.inputs)}, and the built-in digits "
                "only one array: give --data with one array per input"
            )
        return digits()
    names = model.inputs if several else ["x"]
    if settings.loss in model.outputs:
        return load_npz(settings.data, inputs=names, targets=None)
    targets = "values" if settings.loss == "mse" else "labels"
    return load_npz(settings.data, inputs=names, targets=targets)


def _plan(settings: Settings, dataset: Dataset) -> Plan:
    per_epoch = batch_count(dataset.train, settings.batch)
    steps = settings.epochs * per_epoch if settings.steps is None else settings.steps
    if settings.schedule == "constant":
        schedule = constant(settings.lr)
    else:
        schedule = warmup_cosine(settings.lr, steps, warmup=min(per_epoch, steps // 10))
    return Plan(settings.batch, steps, settings.seed, schedule)


def _trainable(model: gg.Model, freeze: Sequence[str]) -> list[str]:
    names = [name for name in model.params if name not in model.frozen]
    for pattern in freeze:
        if not fnmatch.filter(model.params, pattern):
            raise ArgumentError(
                f"--freeze {pattern} matches no weight; the weights are {', '.join(names)}"
            )
        names = [name for name in names if not fnmatch.fnmatchcase(name, pattern)]
    if not names:
        raise ArgumentError("--freeze leaves no weight to train")
    return names


def _without_convolutions(model: gg.Model, names: Sequence[str]) -> list[str]:
    convolutions = [node for node in model.proto.graph.node if node.op_type.startswith("Conv")]
    weights = {name for node in convolutions for name in node.input[1:]}
    rest = [name for name in names if name not in weights]
    if len(rest) == len(names) or not rest:
        raise ArgumentError(
            "--compare-frozen compares with a twin whose convolutions do not train; this model "
            "has no convolution that trains, or nothing else that does"
        )
    return rest


def _training_step(job: Job, trainable: Sequence[str]) -> gg.TrainStep:
    settings = job.settings
    optimizer = gg.optim.SGD(
        settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
    )
    return gg.train_step(
        job.model, settings.loss, optimizer, wrt=list(trainable), target=settings.target
    )
