"""The command ``graphgrad check``."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ..check import GradientCheck, PartCheck, Settings, check_function, of_model
from ..errors import MissingGradientError
from ..frontend.onnx_import import from_onnx
from ..report.table import table
from ..train.npz import read_arrays

BAR = "{n_fmt}/{total_fmt} {desc} [{elapsed}] {bar:10}"


def run(arguments: argparse.Namespace) -> int:
    """Check a model's gradients; return 1 if one is wrong or missing."""
    model = from_onnx(arguments.model, constants=arguments.constants or ())
    inputs = read_arrays(Path(arguments.input)) if arguments.input is not None else None
    subject = of_model(model, inputs, np.random.default_rng(arguments.seed))
    settings = Settings(order=arguments.order, seed=arguments.seed)
    show = _Output(arguments.json)
    try:
        with _Progress() as progress:
            for part in check_function(subject, settings, progress):
                show.part(part)
    except MissingGradientError as error:
        show.missing(error)
        return 1
    return show.result()


class _Progress:
    """The progress of a check: a moving line on a terminal, nothing elsewhere."""

    def __enter__(self) -> "_Progress":
        self._bar = tqdm(file=sys.stderr, bar_format=BAR, disable=not sys.stderr.isatty())
        return self

    def __call__(self, done: int, total: int, text: str) -> None:
        self._bar.total = total
        self._bar.n = done
        self._bar.set_description_str(text)

    def __exit__(self, *exception: object) -> None:
        self._bar.close()


class _Output:
    """The output of a check: a table on a terminal, a line per part elsewhere, or JSON lines."""

    def __init__(self, as_json: bool):
        self._as_json = as_json
        self._as_table = not as_json and sys.stdout.isatty()
        self._parts: list[PartCheck] = []

    def part(self, part: PartCheck) -> None:
        """Take a part that was checked."""
        self._parts.append(part)
        if self._as_json:
            self._event("part", **part.to_json())
        elif not self._as_table:
            print("  ".join(filter(None, _cells(part))), flush=True)

    def missing(self, error: MissingGradientError) -> None:
        """Tell that some ops have no gradient, so nothing was checked."""
        self._event("missing", missing=error.missing)
        print(f"graphgrad: {error}", file=sys.stderr)

    def result(self) -> int:
        """Write the results of all parts together; return the exit code."""
        wrong = [part for part in self._parts if part.mismatch is not None]
        agreeing = GradientCheck([part for part in self._parts if part.mismatch is None])
        self._event(
            "result",
            agrees=not wrong,
            checked=len(self._parts),
            first=wrong[0].label if wrong else None,
            precision=agreeing.precision,
            error=agreeing.error,
        )
        if self._as_table:
            header = ["gradient", "error", "dtype", "of", "remarks"]
            print(table(header, [_cells(part) for part in self._parts], right=[1]))
        if wrong:
            print(f"the first that disagrees: {wrong[0].mismatch}", file=sys.stderr)
        elif not self._as_json:
            print(agreeing.summary)
        return int(bool(wrong))

    def _event(self, event: str, **content: Any) -> None:
        """Write one JSON line, if those are asked for."""
        if self._as_json:
            print(json.dumps({"event": event, **content}, allow_nan=False), flush=True)


def _cells(part: PartCheck) -> list[str]:
    """A part's row of the table."""
    if part.mismatch is not None:
        return ["WRONG", "", part.precision, part.label, str(part.mismatch)]
    remarks = [part.note, part.kink_text]
    text = "; ".join(remark for remark in remarks if remark)
    return ["ok", f"{part.error:.1e}", part.precision, part.label, text]
