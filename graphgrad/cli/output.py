"""The folder that a training run writes: its record, its checkpoint, its results."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, CheckpointError
from ..report.curve import write_picture
from ..runtime.files import replace_file
from ..train.run import Epoch, History

FORMAT = 1


class OutputFolder:
    """The files of a run by name, and the reading and writing of its record.

    ``history.json`` is written before the checkpoint and both replace the old file in one go. The
    record is therefore never behind the checkpoint, which says how many steps it holds: a run
    that was killed at any moment resumes from the checkpoint, and the record is cut to it.
    """

    def __init__(self, path: Path):
        self.path = path
        self.model = path / "model.onnx"
        self.trained = path / "trained.onnx"
        self.history = path / "history.json"
        self.picture = path / "loss.png"
        self.checkpoint = path / "checkpoint.safetensors"
        self._holds_this_run = False

    def create(self) -> None:
        """Make the folder, or raise `ArgumentError` where that is not possible."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(
                f"the output folder {self.path} cannot be made ({error.strerror}); "
                "choose another one with --out"
            ) from error

    def write_model(self, data: bytes) -> None:
        """Write ``model.onnx``; a file of that name that no run left here is never replaced.

        Raises
        ------
        ArgumentError
            There is such a file.
        """
        is_foreign = self.model.exists() and not self.history.exists()
        if is_foreign and self.model.read_bytes() != data:
            raise ArgumentError(
                f"{self.model} is not from a run of graphgrad, and would be replaced; choose "
                "another folder with --out, or give the file as the model to train"
            )
        replace_file(self.model, data)

    def write_history(
        self, settings: Mapping[str, Any], history: History, twin: History | None = None
    ) -> None:
        """Replace ``history.json``; the first time, remove the checkpoint of an earlier run.

        An earlier run's checkpoint must never be taken for one of this run.
        """
        if not self._holds_this_run:
            self.checkpoint.unlink(missing_ok=True)
            self._holds_this_run = True
        record = {"format": FORMAT, "settings": dict(settings), **_to_json(history)}
        if twin is not None:
            record["frozen_twin"] = _to_json(twin)
        text = json.dumps(record, indent=1, allow_nan=False)
        replace_file(self.history, text.encode())

    def read_settings(self) -> dict[str, Any]:
        """The settings of the run that was interrupted here."""
        return self._read()["settings"]

    def read_history(self, steps: int) -> History:
        """The record of the first `steps` steps.

        Raises
        ------
        CheckpointError
            The record holds fewer steps than the checkpoint, so they are not of one run.
        """
        record = self._read()
        losses = [math.nan if loss is None else loss for loss in record["loss"]]
        if len(losses) < steps:
            raise CheckpointError(
                f"{self.checkpoint} is at step {steps}, but {self.history} records only "
                f"{len(losses)} steps: they are not of one run; start again without --resume"
            )
        self._holds_this_run = True
        epochs = [_epoch_from_json(entry) for entry in record["epochs"] if entry["step"] <= steps]
        return History(losses[:steps], epochs, record["seconds"])

    def draw(self, history: History) -> bool:
        """Write the loss curve; return whether that was possible."""
        accuracies = [
            (epoch.step, epoch.held_out["accuracy"])
            for epoch in history.epochs
            if "accuracy" in epoch.held_out
        ]
        return write_picture(self.picture, history.losses, accuracies)

    def written(self, drawn: bool) -> list[Path]:
        """The results of a finished run, the picture only if it was drawn."""
        results = [self.trained, self.history, self.checkpoint]
        return [*results, self.picture] if drawn else results

    def _read(self) -> dict[str, Any]:
        """The record as the file has it, after checking that there is one to go on from."""
        for file in (self.history, self.checkpoint):
            if not file.is_file():
                raise CheckpointError(
                    f"nothing to resume in {self.path}: {file.name} is missing; name the "
                    "folder of the interrupted run with --out, or start without --resume"
                )
        try:
            record = json.loads(self.history.read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                raise ValueError(f"its format is {record['format']}, expected {FORMAT}")
            missing = {"settings", "loss", "epochs", "seconds"} - record.keys()
            if missing:
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.history} is not the record of a training run ({error}); "
                "start again without --resume"
            ) from error
        return record


def finite_or_none(value: float) -> float | None:
    """The value that JSON can hold: a number, or None for one that is not finite."""
    return value if math.isfinite(value) else None


def _to_json(history: History) -> dict[str, Any]:
    """A history as the record holds it; NaN, which JSON does not know, becomes None."""
    return {
        "steps": len(history.losses),
        "skipped_steps": history.skipped,
        "seconds": round(history.seconds, 3),
        "epochs": [epoch_to_json(epoch) for epoch in history.epochs],
        "loss": [finite_or_none(loss) for loss in history.losses],
    }


def epoch_to_json(epoch: Epoch) -> dict[str, Any]:
    """An epoch's record as JSON can hold it."""
    held_out = {name: finite_or_none(value) for name, value in epoch.held_out.items()}
    return asdict(epoch) | {"loss": finite_or_none(epoch.loss), "held_out": held_out}


def _epoch_from_json(entry: Mapping[str, Any]) -> Epoch:
    """The inverse of `epoch_to_json`."""
    held_out = {name: _or_nan(value) for name, value in entry["held_out"].items()}
    return Epoch(**(dict(entry) | {"loss": _or_nan(entry["loss"]), "held_out": held_out}))


def _or_nan(value: float | None) -> float:
    """The inverse of `finite_or_none`, but for infinities, which become NaN."""
    return math.nan if value is None else value
