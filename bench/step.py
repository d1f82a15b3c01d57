"""Time of a training step: graphgrad, torch eager and stock TVM side by side.

    python bench/step.py [--json] [--models resnet_digits,resnet18_cifar] [--threads 2]

A step is forward, loss, backward, batch-norm statistics and SGD with momentum. Every contender
starts from the same weights and batch in a process of its own and must report the same initial
loss. They take turns in rounds, the others stopped; a turn during which other programs kept the
machine busy is rejected and taken again.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contenders import CONTENDERS
from load import LoadMeter
from machine import facts, usable_cores, versions
from process import Contender, ContenderError
from rounds import Record, Rules, Turn, take_rounds
from specs import SPECS, Spec, write
from table import table
from workload import Workload

OURS = "graphgrad"
LOSS_TOLERANCE = 1e-4
WARM_UP = 5
MOST_STEPS = 100
HEADER = [
    "model, contender",
    "ms per step",
    "ratio",
    "first step s",
    "peak MB",
    "end MB",
    "turns",
    "load",
]


def measure(spec: Spec, settings: argparse.Namespace) -> dict[str, Any]:
    """Compare the contenders on one model; a failed one is reported with its error."""
    with tempfile.TemporaryDirectory() as folder:
        field = Field(write(spec, Path(folder)), settings)
        try:
            check_losses(field.running)
            records = field.compete()
            ours = records[OURS].median_seconds() if OURS in records else None
            return {
                "batch": spec.batch,
                "image": [spec.channels, spec.size, spec.size],
                "contenders": {
                    name: figures(field.running[name], records[name], ours)
                    if name in records
                    else {"error": field.errors[name]}
                    for name in settings.contenders
                },
            }
        finally:
            field.close()


class Field:
    """The contenders on one workload: those that run, and the errors of those that failed."""

    def __init__(self, workload: Workload, settings: argparse.Namespace):
        self._settings = settings
        self._steps: dict[str, int] = {}
        self.running: dict[str, Contender] = {}
        self.errors: dict[str, str] = {}
        for name in settings.contenders:
            say(f"  {name}: first step")
            try:
                self.running[name] = Contender(name, workload, settings.threads)
            except ContenderError as error:
                self.errors[name] = str(error)
            except BaseException:
                self.close()
                raise

    def compete(self) -> dict[str, Record]:
        """Warm every contender up and take the rounds."""
        settings = self._settings
        rules = Rules(
            settings.rounds,
            settings.max_load,
            settings.attempts,
            settings.most_seconds,
            settings.pause,
        )
        for name in list(self.running):
            self._guarded(name, self._warm_up)
        return take_rounds(list(self.running), lambda name: self._guarded(name, self._turn), rules)

    def close(self) -> None:
        """End all processes."""
        for contender in self.running.values():
            contender.close()

    def _guarded(self, name: str, work: Callable[[Contender], Turn]) -> Turn | None:
        """Do something with a contender; if that fails, it is out."""
        try:
            return work(self.running[name])
        except ContenderError as error:
            self.errors[name] = str(error)
            self.running.pop(name).close()
            return None

    def _warm_up(self, contender: Contender) -> Turn:
        """Make untimed steps, and choose how many fill a turn."""
        seconds = contender.run(1)
        if seconds[0] < self._settings.turn_seconds:
            seconds = contender.run(WARM_UP)
        wanted = self._settings.turn_seconds / statistics.median(seconds)
        self._steps[contender.name] = max(1, min(MOST_STEPS, round(wanted)))
        return Turn(seconds, load=0.0)

    def _turn(self, contender: Contender) -> Turn:
        steps = self._steps[contender.name]
        meter = LoadMeter(contender.pid)
        # The first step after a stop is slow, with cold caches and threads asleep: a turn of
        # several steps starts with one that does not count.
        turn = Turn(contender.run(steps, untimed=int(steps > 1)), meter.foreign_cores())
        say(
            f"  {contender.name}: {1e3 * statistics.median(turn.seconds):.2f} ms, "
            f"others kept {turn.load:.2f} cores busy"
        )
        return turn


def check_losses(running: dict[str, Contender]) -> None:
    """End the benchmark unless all contenders compute the same thing."""
    losses = {name: contender.facts["initial_loss"] for name, contender in running.items()}
    first = next(iter(losses.values()), math.nan)
    if not all(math.isclose(first, loss, rel_tol=LOSS_TOLERANCE) for loss in losses.values()):
        raise SystemExit(f"the initial losses differ, so the times compare nothing: {losses}")


def figures(contender: Contender, record: Record, ours: float | None) -> dict[str, Any]:
    """Return what was measured of one contender; `ours` is graphgrad's time for a step."""
    seconds = record.median_seconds()
    return {
        **contender.facts,
        "step_ms": 1e3 * seconds,
        "ratio_to_graphgrad": None if ours is None else seconds / ours,
        "memory": contender.memory,
        "quiet": bool(record.quiet),
        "turns_taken": len(record.turns),
        "turns": [
            {"load": turn.load, "step_ms": [1e3 * each for each in turn.seconds]}
            for turn in record.counted
        ],
    }


def report(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    rows, notes, includes = [], [], {}
    for name, entry in result["models"].items():
        rows.append([f"{name}, batch {entry['batch']}", *[""] * (len(HEADER) - 1)])
        for contender, measured in entry["contenders"].items():
            if "error" in measured:
                rows.append([f"  {contender}", "failed", *[""] * (len(HEADER) - 2)])
                notes.append(f"{name}: {contender} failed: {measured['error']}")
                continue
            rows.append([f"  {contender}", *_cells(measured)])
            includes[contender] = f"{contender}: {measured['includes']}"
            if not measured["quiet"]:
                notes.append(f"{name}: {contender} never had the machine to itself: NOT QUIET")
    machine = result["machine"]
    return "\n".join(
        [
            table(HEADER, rows),
            "",
            *notes,
            *includes.values(),
            "ratio: time over graphgrad's. first step: import, compilation and one step.",
            "MB: growth of resident memory since libraries were loaded: highest, and at the end.",
            "turns: those that count, of those taken. load: cores that others kept busy, at most.",
            f"{machine['processor']}, {result['settings']['threads']} threads on "
            f"{machine['cores']} cores, Python {machine['python']}",
        ]
    )


def _cells(measured: dict[str, Any]) -> list[str]:
    ratio, memory, turns = (measured[key] for key in ("ratio_to_graphgrad", "memory", "turns"))
    return [
        f"{measured['step_ms']:.2f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{measured['first_step_seconds']:.1f}",
        "" if memory is None else f"{memory['peak_growth_mb']:.0f}",
        "" if memory is None else f"{memory['growth_mb']:.0f}",
        f"{len(turns)} of {measured['turns_taken']}",
        f"{max(turn['load'] for turn in turns):.2f}",
    ]


def say(text: str) -> None:
    """Tell of progress where it does not mix with the result."""
    print(text, file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add("--models", type=_names(SPECS), default=list(SPECS), help=f"of {', '.join(SPECS)}")
    add(
        "--contenders",
        type=_names(CONTENDERS),
        default=list(CONTENDERS),
        help=f"of {', '.join(CONTENDERS)}",
    )
    add("--rounds", type=_positive, default=7, help="quiet turns of each contender")
    add("--attempts", type=_positive, help="turns taken at most; default three times --rounds")
    add("--threads", type=_positive, default=min(2, usable_cores()), help="of each contender")
    add("--turn-seconds", type=float, default=1.0, help="about how long a contender's turn takes")
    add(
        "--most-seconds",
        type=float,
        default=60.0,
        help="no further turn for a contender whose timed steps took this long",
    )
    add(
        "--max-load",
        type=float,
        default=0.1,
        help="cores others may keep busy in a quiet turn",
    )
    add("--pause", type=float, default=5.0, help="seconds to wait after a loaded turn")
    add("--batch", type=_positive, help="batch size, instead of each model's own")
    add("--width", type=float, help="multiplies all channels, instead of each model's own")
    arguments = parser.parse_args()
    arguments.attempts = arguments.attempts or 3 * arguments.rounds
    if "torch" in arguments.contenders and importlib.util.find_spec("torch") is None:
        parser.error(
            "torch is missing; install graphgrad's extra 'bench': pip install 'graphgrad[bench]', "
            "or leave it out with --contenders"
        )
    return arguments


def _names(known: dict[str, Any]) -> Any:
    def read(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {unknown}; there are {list(known)}")
        return names

    return read


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number above zero, given {text}")
    return value


def chosen_spec(name: str, arguments: argparse.Namespace) -> Spec:
    """Return a model's spec with what the command line says otherwise."""
    changes = {"batch": arguments.batch, "width": arguments.width}
    given = {key: value for key, value in changes.items() if value is not None}
    return dataclasses.replace(SPECS[name], **given)


def main() -> None:
    arguments = parse_arguments()
    # Without this, a terminated benchmark would leave stopped processes behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    measured = {}
    for name in arguments.models:
        say(name)
        measured[name] = measure(chosen_spec(name, arguments), arguments)
    settings = {key: value for key, value in vars(arguments).items() if key != "json"}
    result = {
        "benchmark": "step",
        "machine": facts(),
        "versions": versions(),
        "settings": settings,
        "models": measured,
    }
    print(json.dumps(result, indent=1) if arguments.json else report(result))
    if any("error" in entry["contenders"].get(OURS, {}) for entry in measured.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
