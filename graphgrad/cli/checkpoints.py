"""The last two checkpoints of a run, each with all that it takes to go on from there."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from ..files import writing
from ..runtime.files import sync_folder
from ..train import checkpoint
from ..train.run import Epoch, History
from ..train.step import TrainStep
from .job import FILES

_EPOCH_NUMBERS = 4
"""Columns of the array of epochs before the held-out measures."""


@dataclass(frozen=True)
class Saved:
    """A run as a checkpoint has it.

    Attributes
    ----------
    path : Path
    run : dict
        What the run was started with: its settings, and digests of what it reads.
    history : History
    damaged : list of str
        What is wrong with newer checkpoints.
    """

    path: Path
    run: dict[str, Any]
    history: History
    damaged: list[str] = field(default_factory=list)


class Checkpoints:
    """Two files that a run saves to in turn, so that a damaged one is never the only one.

    A new checkpoint is written under a third name, and both names move on when it is on the disk.
    Killed at any moment, a run leaves the one before, whole, under one of the three names.

    Parameters
    ----------
    newest : Path
        The file's name; the other names are made of it.
    """

    def __init__(self, newest: Path):
        self.newest = newest
        self.previous, self._next = (
            newest.with_suffix(f".{name}{newest.suffix}") for name in ("previous", "next")
        )
        self._last: Path | None = None  # the one of this run that was read or saved last

    @property
    def files(self) -> list[Path]:
        """All names, the newest first."""
        return [self._next, self.newest, self.previous]

    def check_present(self) -> None:
        """Raise `CheckpointError` unless there is a checkpoint."""
        if not any(path.is_file() for path in self.files):
            raise CheckpointError(
                f"nothing to resume in {self.newest.parent}: {self.newest.name} is missing; name "
                "the folder of the interrupted run with --out, or start without --resume"
            )

    def read(self) -> Saved:
        """The newest checkpoint that is whole.

        Raises
        ------
        CheckpointError
            There is none, or all are damaged.
        """
        self.check_present()
        damaged: list[str] = []
        for path in filter(Path.is_file, self.files):
            try:
                _, facts = checkpoint.read(path)
                run, history = _from_extra(facts["extra"])
            except CheckpointError as error:
                damaged.append(str(error))
            except (KeyError, TypeError, ValueError, IndexError) as error:
                damaged.append(f"{path} was not saved by graphgrad train ({error!r})")
            else:
                self._last = path
                return Saved(path, run, history, damaged)
        raise CheckpointError(f"{'; '.join(damaged)}; start again without --resume")

    def read_of(self, run: Mapping[str, Any]) -> Saved | None:
        """The newest checkpoint that is whole; None if there is none of a run, or of its like."""
        try:
            saved = self.read()
        except CheckpointError:
            return None
        if _deciding(saved.run) == _deciding(run):
            return saved
        self._last = None
        return None

    def settle(self) -> None:
        """Bring a checkpoint to its name that was read under the third one.

        A run that was killed among the renames of `save` has left it there.

        Raises
        ------
        OutputError
        """
        if self._last == self._next:
            with writing(self.newest):
                os.replace(self._next, self.newest)
            self._last = self.newest

    def save(self, step: TrainStep, run: Mapping[str, Any], history: History) -> None:
        """Save a run; the checkpoint before becomes the previous one, those of other runs go.

        Raises
        ------
        CheckpointError, OutputError
            It cannot be written; what was saved before is still there.
        """
        self.settle()
        step.save(self._next, _to_extra(run, history))
        with writing(self.newest):
            if self._last is None:
                self.previous.unlink(missing_ok=True)
            elif self._last == self.newest:
                os.replace(self.newest, self.previous)
            os.replace(self._next, self.newest)
            sync_folder(self.newest.parent)
        self._last = self.newest


def _deciding(run: Mapping[str, Any]) -> list[Any]:
    """What decides the results of a run: runs with the same have the same, bit for bit."""
    settings = {name: value for name, value in run["settings"].items() if name not in FILES}
    return [settings, run["digests"]]


def _to_extra(run: Mapping[str, Any], history: History) -> dict[str, Any]:
    """A run as the extra facts of a checkpoint; what grows with its length as arrays."""
    measures = list(history.held_out)
    epochs = [
        [epoch.epoch, epoch.step, epoch.loss, epoch.images_per_second]
        + [epoch.held_out[name] for name in measures]
        for epoch in history.epochs
    ]
    return {
        "run": dict(run),
        "seconds": history.seconds,
        "measures": measures,
        "loss": np.array(history.losses, float),
        "epochs": np.array(epochs, float).reshape(len(epochs), _EPOCH_NUMBERS + len(measures)),
    }


def _from_extra(extra: Mapping[str, Any]) -> tuple[dict[str, Any], History]:
    """The inverse of `_to_extra`."""
    measures = extra["measures"]
    epochs = [
        Epoch(int(epoch), int(step), loss, dict(zip(measures, held_out, strict=True)), speed)
        for epoch, step, loss, speed, *held_out in extra["epochs"].tolist()
    ]
    return dict(extra["run"]), History(extra["loss"].tolist(), epochs, extra["seconds"])
