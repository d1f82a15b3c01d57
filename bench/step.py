"""Time of a training step: graphgrad, torch eager and stock TVM side by side.

    python bench/step.py [--json] [--models resnet_digits,resnet18_cifar] [--threads 2]

A step is forward, loss, backward, batch-norm statistics and SGD with momentum. Every contender
starts from the same weights and batch in a process of its own and must report the same initial
loss. They take turns in rounds, the others stopped; a round during which other programs kept the
machine busy is taken again.
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
from pathlib import Path
from typing import Any

from contenders import CONTENDERS
from load import LoadMeter
from machine import facts, usable_cores, versions
from process import Contender, ContenderError
from rounds import Result, Round, Turn, load_of, take_rounds
from specs import SPECS, Spec, write
from table import table

OURS = "graphgrad"
LOSS_TOLERANCE = 1e-4
WARM_UP = 3
MOST_STEPS = 100


def measure(spec: Spec, settings: argparse.Namespace) -> dict[str, Any]:
    """Compare the contenders on one model; a failed one is reported with its error."""
    errors: dict[str, str] = {}
    running: dict[str, Contender] = {}
    with tempfile.TemporaryDirectory() as folder:
        workload = write(spec, Path(folder))
        try:
            for name in settings.contenders:
                say(f"  {name}: first step")
                try:
                    running[name] = Contender(name, workload, settings.threads)
                except ContenderError as error:
                    errors[name] = str(error)
            check_losses(running)
            result = alternate(running, errors, settings)
            return {
                "batch": spec.batch,
                "image": [spec.channels, spec.size, spec.size],
                "rounds": {
                    "counted": len(result.rounds),
                    "attempts": result.attempts,
                    "quiet": result.quiet,
                    "load": [round(load_of(turns), 3) for turns in result.rounds],
                },
                "contenders": {
                    name: {"error": errors[name]}
                    if name in errors
                    else figures(running[name], running, result)
                    for name in settings.contenders
                },
            }
        finally:
            for contender in running.values():
                contender.close()


def check_losses(running: dict[str, Contender]) -> None:
    """End the benchmark unless all contenders compute the same thing."""
    losses = {name: contender.facts["initial_loss"] for name, contender in running.items()}
    if not losses:
        return
    first = next(iter(losses.values()))
    if not all(math.isclose(first, loss, rel_tol=LOSS_TOLERANCE) for loss in losses.values()):
        raise SystemExit(f"the initial losses differ, so the times compare nothing: {losses}")


def alternate(
    running: dict[str, Contender], errors: dict[str, str], settings: argparse.Namespace
) -> Result:
    """Take the rounds; who fails on the way moves from `running` to `errors`."""
    steps: dict[str, int] = {}

    def each(names: list[str], turn: Any) -> Round:
        turns = {}
        for name in names:
            try:
                turns[name] = turn(name)
            except ContenderError as error:
                errors[name] = str(error)
                running.pop(name).close()
        return turns

    def warm_up(name: str) -> None:
        seconds = statistics.median(running[name].run(WARM_UP))
        steps[name] = max(1, min(MOST_STEPS, round(settings.turn_seconds / seconds)))

    def turn(name: str) -> Turn:
        meter = LoadMeter(running[name].pid)
        seconds = running[name].run(steps[name])
        return Turn(seconds, meter.foreign_cores())

    def take(index: int) -> Round:
        names = list(running)
        first = index % len(names) if names else 0  # nobody always follows the same one
        turns = each(names[first:] + names[:first], turn)
        if turns:
            say(f"  round {index + 1}: load {load_of(turns):.2f} cores")
        return turns

    each(list(running), warm_up)
    return take_rounds(take, settings.rounds, settings.max_load, settings.attempts, settings.pause)


def figures(contender: Contender, running: dict[str, Contender], result: Result) -> dict[str, Any]:
    """Return what was measured of one contender."""
    seconds = result.median_seconds(contender.name)
    ours = result.median_seconds(OURS) if OURS in running else None
    return {
        **contender.facts,
        "step_ms": 1e3 * seconds,
        "ratio_to_graphgrad": None if ours is None else seconds / ours,
        "round_ms": [
            1e3 * statistics.median(turns[contender.name].seconds) for turns in result.rounds
        ],
        "steps_per_round": len(result.rounds[0][contender.name].seconds),
        "memory": contender.memory,
    }


def report(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    header = ["model, contender", "ms per step", "ratio", "first step s", "peak MB", "after MB"]
    rows, notes = [], []
    for name, entry in result["models"].items():
        rows.append([f"{name}, batch {entry['batch']}", *[""] * (len(header) - 1)])
        for contender, measured in entry["contenders"].items():
            if "error" in measured:
                rows.append([f"  {contender}", "failed", *[""] * (len(header) - 2)])
                notes.append(f"{name}: {contender} failed: {measured['error']}")
            else:
                rows.append([f"  {contender}", *_cells(measured)])
        notes.append(f"{name}: {_rounds_text(entry['rounds'], result['settings'])}")
    includes = {
        contender: measured["includes"]
        for entry in result["models"].values()
        for contender, measured in entry["contenders"].items()
        if "includes" in measured
    }
    notes += [f"{contender}: {text}" for contender, text in includes.items()]
    machine = result["machine"]
    notes.append(
        "ratio: time over graphgrad's; first step: import, compilation and one step; "
        "MB: growth of resident memory since the libraries were loaded, at its peak and at the end"
    )
    notes.append(
        f"{machine['processor']}, {result['settings']['threads']} threads on {machine['cores']} "
        f"cores, Python {machine['python']}"
    )
    return "\n".join([table(header, rows), "", *notes])


def _cells(measured: dict[str, Any]) -> list[str]:
    ratio, memory = measured["ratio_to_graphgrad"], measured["memory"]
    return [
        f"{measured['step_ms']:.2f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{measured['first_step_seconds']:.1f}",
        "" if memory is None else f"{memory['peak_growth_mb']:.0f}",
        "" if memory is None else f"{memory['growth_mb']:.0f}",
    ]


def _rounds_text(rounds: dict[str, Any], settings: dict[str, Any]) -> str:
    loads = rounds["load"]
    text = f"{rounds['counted']} rounds of {rounds['attempts']} taken count"
    if loads:
        text += f", others kept {min(loads):.2f} to {max(loads):.2f} cores busy"
    return text if rounds["quiet"] else f"{text}: NOT QUIET (limit {settings['max_load']})"


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
    add("--rounds", type=_positive, default=7, help="rounds that count")
    add("--attempts", type=_positive, help="rounds taken at most; default three times --rounds")
    add("--threads", type=_positive, default=min(2, usable_cores()), help="of each contender")
    add("--turn-seconds", type=float, default=1.0, help="about how long a contender's turn takes")
    add("--max-load", type=float, default=0.1, help="cores that others may keep busy in a round")
    add("--pause", type=float, default=5.0, help="seconds to wait after a rejected round")
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


if __name__ == "__main__":
    main()
