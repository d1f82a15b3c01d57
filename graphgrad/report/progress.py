"""One progress line while a model trains."""

import math
from collections.abc import Mapping
from typing import Any, TextIO

from tqdm import tqdm

from ..train.run import Epoch
from .stream import Stream

# The numbers come first, because a narrow terminal cuts the end off.
BAR = "{desc}step {n_fmt}/{total_fmt}{postfix} [{elapsed}<{remaining}] {bar:10}"


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
        self._bar: tqdm | None = None
        if self._stream.isatty():
            self._bar = tqdm(
                total=total,
                initial=done,
                file=self._stream,
                desc=self._prefix,
                bar_format=BAR,
            )

    def step(self, loss: float, speed: float, held_out: Mapping[str, float]) -> None:
        """Show one more step: its loss, examples per second and the latest held-out measure."""
        if self._bar is not None:
            self._bar.set_postfix_str(describe(loss, speed, held_out), refresh=False)
            self._bar.update()

    def epoch(self, epoch: Epoch) -> None:
        """Show that an epoch is done, with its mean loss."""
        text = describe(epoch.loss, epoch.images_per_second, epoch.held_out)
        if self._bar is not None:
            self._bar.set_postfix_str(text)
            return
        line = f"{self._prefix}epoch {epoch.epoch}, step {epoch.step}/{self._total}, {text}"
        print(line, file=self._stream, flush=True)

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()


def describe(loss: float, speed: float, held_out: Mapping[str, float]) -> str:
    """A step in words, such as ``loss 0.1234, accuracy 98.61 %, 5,120 images/s``."""
    parts = [f"loss {loss:.4f}" if math.isfinite(loss) else "skipped (not finite)"]
    parts += [f"{name.replace('_', ' ')} {show(name, value)}" for name, value in held_out.items()]
    return ", ".join([*parts, f"{speed:,.0f} images/s"])


def show(name: str, value: float) -> str:
    """A held-out measure as text; accuracies are percentages."""
    return f"{100 * value:.2f} %" if name == "accuracy" else f"{value:.4g}"
