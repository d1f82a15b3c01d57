"""One progress line while a command works; on a terminal drawn by rich."""

import math
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..train.run import Epoch
from .stream import Stream


def moving_line(stream: Any) -> Progress:
    """A line that moves on a terminal, for one task; nothing where the stream is none.

    The text comes first, because a narrow terminal cuts the end off.
    """
    stream = stream if isinstance(stream, Stream) else Stream(stream)
    return Progress(
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        BarColumn(bar_width=10),
        TimeRemainingColumn(),
        console=Console(file=stream, highlight=False),
        disable=not stream.isatty(),
        # What others write to these goes there as it is: their readers may be programs.
        redirect_stdout=False,
        redirect_stderr=False,
    )


class ProgressLine:
    """A moving line on a terminal; elsewhere one plain line at the end of each epoch.

    Parameters
    ----------
    total : int
        Steps of the whole run.
    stream : TextIO or None
        Where to write as long as that is possible; whether it is a terminal decides the form.
    done : int
        Steps done before.
    label : str
        Put before each line.
    """

    def __init__(self, total: int, stream: TextIO | None, done: int = 0, label: str = ""):
        self._total = total
        self._stream: Any = Stream(stream)
        self.label = label
        self._prefix = f"{label}: " if label else ""
        self._line = moving_line(self._stream)
        self._task = self._line.add_task(f"{self._prefix}step {done}/{total}", total=total)
        self._line.update(self._task, completed=done)
        self._done = done

    def step(self, loss: float, speed: float, held_out: Mapping[str, float]) -> None:
        """Show one more step: its loss, examples per second and the latest held-out measure."""
        self._done += 1
        self._tell(describe(loss, speed, held_out))

    def epoch(self, epoch: Epoch) -> None:
        """Show that an epoch is done, with its mean loss."""
        text = describe(epoch.loss, epoch.images_per_second, epoch.held_out)
        if not self._line.disable:
            self._tell(text)
            return
        line = f"{self._prefix}epoch {epoch.epoch}, step {epoch.step}/{self._total}, {text}"
        print(line, file=self._stream, flush=True)

    def _tell(self, text: str) -> None:
        """Change what the moving line says."""
        description = f"{self._prefix}step {self._done}/{self._total}, {text}"
        self._line.update(self._task, completed=self._done, description=description)

    def __enter__(self) -> "ProgressLine":
        self._line.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._line.stop()


def describe(loss: float, speed: float, held_out: Mapping[str, float]) -> str:
    """A step in words, such as ``loss 0.1234, accuracy 98.61 %, 5,120 images/s``."""
    parts = [f"loss {loss:.4f}" if math.isfinite(loss) else "skipped (not finite)"]
    parts += [f"{name.replace('_', ' ')} {show(name, value)}" for name, value in held_out.items()]
    return ", ".join([*parts, f"{speed:,.0f} images/s"])


def show(name: str, value: float) -> str:
    """A held-out measure as text; accuracies are percentages."""
    return f"{100 * value:.2f} %" if name == "accuracy" else f"{value:.4g}"
