"""The output of a training run: text for people, or one JSON object per line."""

import json
import sys
from pathlib import Path
from textwrap import shorten
from typing import Any

from ..train.run import History
from .curve import sparkline
from .progress import show
from .stream import Stream

_LINE = 400  # characters of a note; some list every node of a model


class TrainingReport:
    """The report of a run on standard output; only failures go to standard error.

    A stream that cannot be written is left alone from then on, and the run goes on.

    Parameters
    ----------
    as_json : bool
        Write JSON lines, each with the key ``event``, in place of text.
    """

    def __init__(self, as_json: bool):
        self._as_json = as_json
        self._output, self._errors = Stream(sys.stdout), Stream(sys.stderr)

    def event(self, event: str, **content: Any) -> None:
        """Write one JSON line, if those are wanted."""
        if self._as_json:
            self._print(json.dumps({"event": event, **content}, allow_nan=False))

    def text(self, text: str) -> None:
        """Write text, unless JSON is wanted; what the terminal cannot show becomes a question."""
        if not self._as_json:
            encoding = self._output.encoding
            self._print(text.encode(encoding, "replace").decode(encoding))

    def resume(self, checkpoint: Path, step: int, damaged: list[str]) -> None:
        """Say which checkpoint the run goes on from, and what is wrong with newer ones."""
        self.event("resume", checkpoint=str(checkpoint), step=step, damaged=damaged)
        for problem in damaged:
            self._complain(problem)
        self.text(f"going on from {checkpoint}, step {step}")

    def start(self, name: str, **facts: Any) -> None:
        """Say what is about to be trained."""
        self.event("start", model=name, **facts)
        self.text(
            f"training {name}: {facts['weights']} weights, {facts['train']} examples "
            f"({facts['held_out']} held out), steps {facts['done']} to {facts['steps']}"
        )
        for note in facts.get("notes", ()):
            self.text(shorten(f"  note: {note}", _LINE, placeholder=" …"))

    def frozen_twin(self, history: History) -> None:
        """Tell how well the twin with frozen convolutions did."""
        self.event("frozen_twin", held_out=history.held_out, seconds=round(history.seconds, 3))
        self._measures("with frozen convolutions: held-out", history)

    def finish(self, history: History, written: list[Path], drawn: bool) -> None:
        """Tell the result and where it is."""
        self.event(
            "done",
            held_out=history.held_out,
            steps=len(history.losses),
            skipped_steps=history.skipped,
            seconds=round(history.seconds, 3),
            files=[str(path) for path in written],
        )
        self._measures("held-out", history)
        skipped = f", {history.skipped} skipped" if history.skipped else ""
        self.text(f"{len(history.losses)} steps{skipped} in {history.seconds:.1f} s")
        self.text(f"loss {sparkline(history.losses)}")
        self.text(f"wrote {', '.join(map(str, written))}")
        if not drawn:
            self.text("for the curve as a picture: pip install 'graphgrad[plot]'")

    def interrupted(
        self, history: History, steps: int, signal: str, folder: Path, resume: str | None
    ) -> None:
        """Say what ended the run, what is saved, and how to go on; None: nothing is saved."""
        steps_done = len(history.losses)
        self.event(
            "interrupted",
            done=steps_done,
            steps=steps,
            signal=signal,
            saved=str(folder) if resume else None,
            resume=resume,
        )
        if resume is None:
            self.text(f"stopped by {signal} before the first step; nothing is saved")
            return
        self.text(
            f"stopped by {signal} after step {steps_done} of {steps}, which is saved in {folder}; "
            f"go on with: {resume}"
        )

    def diverged(self, history: History) -> None:
        """Say that the run failed, and what may help."""
        last_step, skipped = len(history.losses), history.skipped_at_end
        message = (
            f"the loss or a gradient was not finite in each of the last {skipped} steps (up to "
            f"step {last_step}), so the run failed; those steps changed nothing. Lower --lr, or "
            "look for values in the data that are not finite"
        )
        self.event("diverged", done=last_step, message=message)
        self._complain(message)

    def close(self, folder: Path) -> None:
        """Say on standard error if standard output could not be written."""
        if self._output.failure is not None:
            self._complain(
                f"standard output could not be written ({self._output.failure.strerror}); the run "
                f"went on without it, and what it wrote is in {folder}"
            )

    def _print(self, text: str) -> None:
        """Write a line to standard output."""
        self._output.write(f"{text}\n")
        self._output.flush()

    def _complain(self, text: str) -> None:
        """Write a line to standard error."""
        self._errors.write(f"graphgrad: {text}\n")
        self._errors.flush()

    def _measures(self, label: str, history: History) -> None:
        """Write the latest held-out measures as text."""
        for name, value in history.held_out.items():
            self.text(f"{label} {name.replace('_', ' ')} {show(name, value)}")
