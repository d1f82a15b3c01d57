"""The folder that a training run writes: its checkpoints, its record, its results."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..files import write_file
from ..report.curve import write_picture
from ..runtime.files import UNFINISHED, remove_unfinished, sync_folder
from ..train.run import Epoch, History
from .checkpoints import Checkpoints
from .lock import locked

FORMAT = 1


class OutputFolder:
    """The files of a run by name, and the writing of its record.

    A run goes on from its checkpoints alone; ``history.json`` says the same to people and programs.
    """

    def __init__(self, path: Path):
        self.path = path
        self.model = path / "model.onnx"
        self.trained = path / "trained.onnx"
        self.history = path / "history.json"
        self.picture = path / "loss.png"
        self.checkpoints = Checkpoints(path / "checkpoint.safetensors")
        self.twin_checkpoints = Checkpoints(path / "frozen-twin.safetensors")

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the folder, keep other runs out of it, and remove what killed ones left half done.

        Raises
        ------
        ArgumentError
            The folder cannot be made or written, or another run writes to it.
        """
        files = [self.model, self.trained, self.history, self.picture]
        files += [*self.checkpoints.files, *self.twin_checkpoints.files]
        with contextlib.ExitStack() as stack:
            try:
                _make_folder(self.path)
                stack.enter_context(locked(self.path))
                for file in files:
                    remove_unfinished(file, UNFINISHED)
            except OSError as error:
                raise ArgumentError(
                    f"the output folder {self.path} cannot be made or written ({error.strerror}); "
                    "choose another one with --out"
                ) from error
            for file in filter(Path.is_dir, files):
                raise ArgumentError(
                    f"{file} is a folder, where a file is to be written; move it away, or choose "
                    "another folder with --out"
                )
            yield

    def check_model(self, data: bytes) -> None:
        """Raise if ``model.onnx``, to be replaced by `data`, is a file that no run left here.

        Raises
        ------
        ArgumentError
        """
        is_foreign = self.model.exists() and not self.history.exists()
        if is_foreign and not self._holds(data):
            raise ArgumentError(
                f"{self.model} is not from a run of graphgrad, and would be replaced; choose "
                "another folder with --out, or give the file as the model to train"
            )

    def write_model(self, data: bytes) -> None:
        """Write ``model.onnx``, unless it is there."""
        if not self._holds(data):
            write_file(self.model, data)

    def _holds(self, data: bytes) -> bool:
        """Whether ``model.onnx`` is there, and consists of `data`."""
        return self.model.exists() and self.model.read_bytes() == data

    def write_history(
        self, run: Mapping[str, Any], history: History, twin: History | None = None
    ) -> None:
        """Replace ``history.json``.

        Raises
        ------
        OutputError
        """
        record = {"format": FORMAT, **run, **_to_json(history)}
        if twin is not None:
            record["frozen_twin"] = _to_json(twin)
        write_file(self.history, json.dumps(record, indent=1, allow_nan=False).encode())

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
        results = [self.trained, self.history, self.checkpoints.newest]
        return [*results, self.picture] if drawn else results


def _make_folder(path: Path) -> None:
    """Make a folder, and those above it, so that no crash takes them with what is saved there."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


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
    return asdict(epoch) | {
        "loss": finite_or_none(epoch.loss),
        "held_out": {name: finite_or_none(value) for name, value in epoch.held_out.items()},
        "images_per_second": finite_or_none(epoch.images_per_second),
    }
