"""The command ``graphgrad check``."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ..check import GradientCheck, PartCheck, Settings, check_function, of_model
from ..check.node_values import ValueCheck, compare_with_onnxruntime
from ..errors import MissingGradientError
from ..frontend.onnx_import import from_onnx
from ..report.progress import moving_line
from ..report.table import show, table
from ..train.npz import read_arrays
from .left_out import check_left_out


def run(arguments: argparse.Namespace) -> int:
    """Check a model's gradients, or its values; return 1 if one is wrong or missing."""
    if arguments.against is not None:
        return _compare(arguments)
    model = from_onnx(arguments.model, constants=arguments.constants or ())
    inputs = read_arrays(Path(arguments.input)) if arguments.input is not None else None
    subject = of_model(model, inputs, np.random.default_rng(arguments.seed))
    settings = Settings(order=arguments.order or 1, seed=arguments.seed)
    show = _Output(arguments.json)
    try:
        with _Progress() as progress:
            for part in check_function(subject, settings, progress):
                show.part(part)
    except MissingGradientError as error:
        show.missing(error)
        return 1
    return show.result()


def _compare(arguments: argparse.Namespace) -> int:
    """Compare what the nodes of a file compute with onnxruntime; return 1 if a value differs."""
    ignored = {"order": None, "constants": None}
    check_left_out("--against onnxruntime compares values", arguments, ignored)
    inputs = read_arrays(Path(arguments.input)) if arguments.input is not None else None
    generator = np.random.default_rng(arguments.seed)
    as_table = not arguments.json and sys.stdout.isatty()
    values = []
    for value in compare_with_onnxruntime(arguments.model, inputs, generator):
        values.append(value)
        if arguments.json:
            print(json.dumps({"event": "value", **value.to_json()}, allow_nan=False), flush=True)
        elif not as_table:
            print("  ".join(filter(None, _value_cells(value))), flush=True)
    wrong = [value for value in values if value.mismatch]
    if as_table:
        header = ["value", "error", "ulps", "dtype", "of", "remarks"]
        show(table(header, [_value_cells(value) for value in values], right=[1, 2]))
    if arguments.json:
        result = {
            "event": "result",
            "agrees": not wrong,
            "checked": len(values),
            "first": wrong[0].to_json() if wrong else None,
        }
        print(json.dumps(result, allow_nan=False), flush=True)
    elif not wrong:
        largest = max((value.error for value in values), default=0.0)
        print(f"{len(values)} values agree with onnxruntime, largest error {largest:.1e}")
    if wrong:
        first = wrong[0]
        print(
            f"the first that differs: {_described(first)}: {first.mismatch}; the largest "
            f"difference is {_distance(first)}",
            file=sys.stderr,
        )
    return int(bool(wrong))


def _described(value: ValueCheck) -> str:
    """Operator, node and output of a value."""
    return f"{value.operator} {value.node!r}, output {value.output!r}"


def _distance(value: ValueCheck) -> str:
    """The largest difference of a value, in words."""
    relative = f"{value.error:.1e} of the largest value"
    return relative if value.ulps is None else f"{relative}, {value.ulps:.3g} ulps"


def _value_cells(value: ValueCheck) -> list[str]:
    """A value's row of the table."""
    ulps = "" if value.ulps is None else f"{value.ulps:.3g}"
    status = "DIFFERS" if value.mismatch else "ok"
    return [
        status,
        f"{value.error:.1e}",
        ulps,
        value.dtype,
        _described(value),
        value.mismatch,
    ]


class _Progress:
    """The progress of a check: a moving line on a terminal, nothing elsewhere."""

    def __enter__(self) -> "_Progress":
        self._line = moving_line(sys.stderr)
        self._task = self._line.add_task("", total=None)
        self._line.start()
        return self

    def __call__(self, done: int, total: int, text: str) -> None:
        description = f"{done}/{total} {text}"
        self._line.update(self._task, completed=done, total=total, description=description)

    def __exit__(self, *exception: object) -> None:
        self._line.stop()


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
            show(table(header, [_cells(part) for part in self._parts], right=[1]))
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
    return ["ok", f"{part.error:.1e}", part.precision, part.label, "; ".join(part.remarks)]
