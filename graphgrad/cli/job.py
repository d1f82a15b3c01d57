"""The job of ``graphgrad train``: its settings, and the model, data and step that they describe."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, CheckpointError, InputError
from ..frontend.model import Model
from ..frontend.onnx_import import from_onnx
from ..precision.choice import FULL, Precision
from ..train.data import Dataset, TargetKind, batch_count, batches, digits, load_npz
from ..train.loss import LOSSES
from ..train.run import Plan, bound
from ..train.step import TrainStep, train_step
from .optimizer import BUILT_IN, DEFAULTS, build_optimizer, build_schedule

FILES = {"model", "data"}
"""Settings that name files: what the files hold is compared when a run is resumed, by digests."""


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
    precision: str = "float32"
    full_precision: list[str] = field(default_factory=list)
    memory: str | None = None
    compare_frozen: bool = False


@dataclass(frozen=True)
class Job:
    """A run that is ready to start: its settings are checked, its model and data are read."""

    settings: Settings
    model: Model
    twin: Model | None
    dataset: Dataset
    plan: Plan

    def step(self, model: Model) -> TrainStep:
        """The training step of the model, or of its twin."""
        settings = self.settings
        return train_step(
            model,
            settings.loss,
            build_optimizer(settings),
            self.wrt(model),
            target=settings.target,
            accumulate=settings.accumulate,
            seed=settings.seed,
            rules=settings.rules,
            precision=chosen_precision(settings.precision, settings.full_precision),
            memory=chosen_memory(settings.memory),
        )

    def wrt(self, model: Model) -> list[str]:
        """The names of the weights that train in the model, or in its twin."""
        if not self.settings.wrt:
            return model.trainable()
        names = matching(model, "--wrt", self.settings.wrt)
        # What --freeze or --constants freeze, too, is refused where the step is made.
        return [name for name in names if name not in model.frozen - self.model.frozen]

    def check_data(self, step: TrainStep) -> None:
        """Raise unless the model takes a batch of the data.

        Raises
        ------
        InputError
        """
        first_batch = next(
            batches(self.dataset.train, self.plan.batch, seed=self.plan.seed, epoch=0)
        )
        try:
            step.check(bound(first_batch), first_batch.targets)
        except InputError as error:
            if self.settings.data is not None or self.settings.model is None:
                raise
            (array,) = self.dataset.train.inputs.values()
            raise InputError(
                f"{error} (without --data a model gets the built-in digits: {array.dtype} of shape "
                f"(N, {str(array.shape[1:])[1:]}, and labels from 0 to 9)"
            ) from error


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line names."""
    all_settings = {setting.name: getattr(arguments, setting.name) for setting in fields(Settings)}
    settings = {name: value for name, value in all_settings.items() if value is not None}
    for name in settings.keys() & FILES:
        settings[name] = str(Path(settings[name]).resolve())
    return settings


def new_settings(arguments: argparse.Namespace) -> Settings:
    """The settings of a new run: those given, else those of its optimizer, else the defaults."""
    command_line = _given(arguments)
    optimizer = command_line.get("optimizer", Settings.optimizer)
    defaults = dict(DEFAULTS[optimizer])
    if optimizer == "sgd" and "model" not in command_line:
        defaults |= BUILT_IN
    settings = Settings(**{**defaults, **command_line})
    if settings.data is not None and settings.model is None:
        raise ArgumentError(
            "--data is given without a model: the built-in network is for the built-in digits; "
            "name an ONNX file to train on your data"
        )
    return settings


def resumed_settings(run: Mapping[str, Any], arguments: argparse.Namespace) -> Settings:
    """The settings of a run that goes on; files may have moved.

    Raises
    ------
    ArgumentError
        The command line has others; names all of them.
    CheckpointError
        They are those of another version of graphgrad.
    """
    stored, command_line = run["settings"], _given(arguments)
    differences = [
        f"{name} is {value!r}, but the run has {stored.get(name)!r}"
        for name, value in command_line.items()
        if name not in FILES and stored.get(name) != value
    ]
    if differences:
        raise ArgumentError(
            f"{'; '.join(differences)}; a resumed run keeps its settings: leave them out, or start "
            "without --resume"
        )
    moved = {name: value for name, value in command_line.items() if name in FILES}
    try:
        return Settings(**{**stored, **moved})
    except TypeError as error:
        raise CheckpointError(f"the settings of the run are not known: {error}") from error


def make_job(settings: Settings, source: Any) -> Job:
    """Read and check everything that a run needs; `source` is the model's file or what it holds."""
    model = freeze_matching(from_onnx(source, constants=settings.constants), settings.freeze)
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


def _plan(settings: Settings, dataset: Dataset) -> Plan:
    """How long and with which learning rates to train."""
    per_epoch = batch_count(dataset.train, settings.batch * settings.accumulate)
    steps = settings.epochs * per_epoch if settings.steps is None else settings.steps
    schedule = build_schedule(settings, steps, per_epoch)
    return Plan(settings.batch, steps, settings.seed, schedule, settings.accumulate)


def freeze_matching(model: Model, patterns: Sequence[str]) -> Model:
    """The model with the weights frozen that the patterns match.

    Raises
    ------
    ArgumentError
        A pattern matches nothing, or no weight is left to train.
    """
    model = model.freeze(*matching(model, "--freeze", patterns))
    if not model.trainable():
        raise ArgumentError("no weight is left to train; freeze fewer with --freeze")
    return model


def matching(model: Model, option: str, patterns: Sequence[str]) -> list[str]:
    """The names of the weights that the patterns of an option match.

    Raises
    ------
    ArgumentError
        A pattern matches nothing.
    """
    names: dict[str, None] = {}
    for pattern in patterns:
        matched = model.matching(pattern)
        if not matched:
            raise ArgumentError(
                f"{option} {pattern} matches no weight; the weights are {', '.join(model.params)}"
            )
        names.update(dict.fromkeys(matched))
    return list(names)


def chosen_precision(dtype: str, full_precision: Sequence[str] | None) -> Precision:
    """The precision that the options say: a dtype, and the nodes that stay float32.

    Raises
    ------
    ArgumentError
        Nodes are named with a dtype that has no exceptions.
    """
    return Precision(dtype, dict.fromkeys(full_precision or (), FULL))


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
"""What letters behind a number of bytes multiply it by."""


def chosen_memory(text: str | None) -> int | float | None:
    """The budget that ``--memory`` says: bytes, such as 2GB or 500M, or a share, such as 0.6.

    Raises
    ------
    ArgumentError
        It is neither.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d*\.?\d+|\d+\.)([KMG]?)(B?)", text.strip().upper())
    if match is None:
        raise ArgumentError(
            f"--memory {text}: give a number of bytes, such as 2GB or 500M, or a share of the "
            "unconstrained peak, such as 0.6"
        )
    number, unit, byte = match.groups()
    is_share = "." in number and not unit and not byte
    return float(number) if is_share else int(float(number) * _UNITS[unit])


def _freeze_convolutions(model: Model) -> Model:
    """The twin of a model: the same weights, of which those of convolutions do not train."""
    nodes = model.skeleton.graph.node if model.skeleton is not None else []
    convolutions = [node for node in nodes if node.op_type.startswith("Conv")]
    weights = {name for node in convolutions for name in node.input[1:]} & set(model.trainable())
    twin = model.freeze(*weights)
    if not weights or not twin.trainable():
        raise ArgumentError(
            "--compare-frozen compares with a twin whose convolutions do not train; this model "
            "has no convolution that trains, or nothing else that does"
        )
    return twin
