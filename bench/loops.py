"""Time of recurrent networks and scans in training: graphgrad beside torch.

    python bench/loops.py [--json] [--loops lstm,selective_scan] [--contenders graphgrad,torch]
    python bench/loops.py --loops lstm --batch 1,16,64 --steps 16,64,512
    python bench/loops.py --before ../other-checkout

Language models (embedding, two recurrent layers, projection, cross entropy) make steps of SGD with
momentum; of a layer, of an LSTM with norms in its cell and of a selective scan the gradients by all
arguments are computed. Contenders take turns as in ``step.py``. Before that, the loss and all
gradients of their first steps are compared: where they differ, nothing is timed. On a machine that
others use, ``--threads 1 --cpu-time`` still gives rough ratios.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from contenders import BEFORE, COPY, DERIVED, LOOP_CONTENDERS
from field import Field, add_clock, add_pace, check_clock, chosen_pace, positive, say, some_of
from loop_workloads import LANGUAGE_MODEL, LAYER, LAYER_NORM_CELL, LOOPS, SELECTIVE_SCAN, Loop
from machine import facts, machine_of, usable_cores, versions
from process import Contender
from rounds import Record, figures_of
from step import LOSS_TOLERANCE, OURS, check_compiler, check_contenders, tell
from table import table
from workload import Workload

GRADIENT_TOLERANCE = 1e-4
"""Largest distance of a gradient from another, to its norm."""

MOST_STEPS = 2_000
EXTENTS = ("batch", "steps", "width", "vocabulary")
_OTHERS = ("torch", "torch_compile", DERIVED, BEFORE)

HEADER = [
    "loop",
    "ms",
    "torch",
    "compiled",
    "derived",
    "before",
    "ratio",
    "peak MB",
    "of torch's",
    "first step s",
    "again s",
    "load",
]


def measure(name: str, loop: Loop, settings: argparse.Namespace) -> dict[str, Any]:
    """Compare the contenders on one loop; a failed one is reported with its error."""
    field = Field(chosen_pace(settings, MOST_STEPS), tell)
    contenders = chosen_contenders(loop, settings)
    with tempfile.TemporaryDirectory() as folder:
        workload = loop.write(Path(folder))
        first: dict[str, dict[str, Any]] = {}
        try:
            for contender in contenders:
                say(f"  {contender}: first step")
                start = partial(started, contender, workload, settings, first)
                field.enter(contender, start)
            check_agreement(first, Path(folder))
            records = field.compete()
            figures = {
                contender: _figures(field, contender, first, records[contender])
                if contender in records
                else {"error": field.errors[contender]}
                for contender in contenders
            }
        finally:
            field.close()
    return {"loop": name, **dataclasses.asdict(loop), "contenders": figures, **ratios(figures)}


def chosen_contenders(loop: Loop, settings: argparse.Namespace) -> list[str]:
    """Return who competes; a selective scan is also compared with a copy of its arguments."""
    is_scan = loop.kind == SELECTIVE_SCAN
    return [*settings.contenders, *([COPY] if is_scan else [])]


def started(
    name: str, workload: Workload, settings: argparse.Namespace, first: dict[str, dict[str, Any]]
) -> Contender:
    """Return a contender that has made its first step.

    It is started twice: the first process leaves its gradients, and notes its facts in `first`;
    the second, which finds what the first has compiled, competes.

    Raises
    ------
    ContenderError
    """
    check_compiler(name)
    tree = settings.before if name == BEFORE else None
    start = partial(
        Contender, name, workload, settings.threads, LOOP_CONTENDERS, tree, settings.clock
    )
    if name == COPY:
        return start()
    contender = start()
    try:
        contender.ask({"gradients": str(gradients_file(workload.folder, name))})
        first[name] = contender.facts
    finally:
        contender.close()
    return start()


def gradients_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npz"


def check_agreement(first: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """End the benchmark unless all contenders compute the same loss and gradients.

    Parameters
    ----------
    first : mapping
        The facts of the first step of each.
    folder : Path
        Where their gradients are.
    """
    if not first:
        return
    reference = "torch" if "torch" in first else next(iter(first))
    for name in first:
        losses = [first[each]["initial_loss"] for each in (name, reference)]
        if not math.isclose(*losses, rel_tol=LOSS_TOLERANCE):
            raise SystemExit(f"initial losses differ, so times compare nothing: {losses} of {name}")
        if found := disagreement(name, reference, folder):
            raise SystemExit(f"times compare nothing: {found}")


def disagreement(name: str, reference: str, folder: Path) -> str | None:
    """Return how the gradients that a contender left in a folder differ; None if they do not."""
    with np.load(gradients_file(folder, reference)) as arrays:
        expected = dict(arrays)
    with np.load(gradients_file(folder, name)) as arrays:
        gradients = dict(arrays)
    if gradients.keys() != expected.keys():
        return f"{name} has gradients by {list(gradients)}, not {list(expected)}"
    for weight, array in expected.items():
        error = np.linalg.norm(gradients[weight] - array) / max(np.linalg.norm(array), 1e-30)
        if not error <= GRADIENT_TOLERANCE:  # NaN is wrong as well
            return (
                f"gradients differ: that of {weight} by {name} is {error:.1e} of its norm away "
                f"from that by {reference}"
            )
    return None


def _figures(
    field: Field, name: str, first: Mapping[str, Mapping[str, Any]], record: Record
) -> dict[str, Any]:
    """Return what was measured of one contender."""
    contender = field.running[name]
    seconds = {"first_step_again_seconds": contender.facts["first_step_seconds"]}
    return {
        **first.get(name, contender.facts),
        **(seconds if name in first else {}),
        "memory": contender.memory,
        **figures_of(record),
    }


def ratios(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """Return graphgrad's time and memory over those of torch at its fastest; None without both."""
    torch = [f for n, f in figures.items() if n.startswith("torch") and "error" not in f]
    ours = figures.get(OURS, {"error": ""})
    if not torch or "error" in ours:
        return {"ratio": None, "memory_ratio": None}
    best = min(torch, key=lambda measured: measured["step_ms"])
    memory = None
    if ours["memory"] and best["memory"]:
        memory = ours["memory"]["peak_growth_mb"] / best["memory"]["peak_growth_mb"]
    return {"ratio": ours["step_ms"] / best["step_ms"], "memory_ratio": memory}


def summary(measured: list[dict[str, Any]]) -> list[str]:
    """Return in words what compares loops with each other, and with a copy."""
    lines = []
    for directions, text in ((1, "one direction"), (2, "both directions")):
        found = [
            entry["ratio"]
            for entry in measured
            if entry["kind"] == LANGUAGE_MODEL and entry["directions"] == directions
        ]
        if len(known := [ratio for ratio in found if ratio]) > 1:
            mean = statistics.geometric_mean(known)
            lines.append(f"language models, {text}: {mean:.2f} as a geometric mean")
    layers = {_extents(e): ms for e in measured if e["kind"] == LAYER and (ms := _ms(e, OURS))}
    for entry in measured:
        ours, copy = _ms(entry, OURS), _ms(entry, COPY)
        if entry["kind"] == LAYER_NORM_CELL and ours and (layer := layers.get(_extents(entry))):
            lines.append(
                f"{_title(entry)}: {ours / layer:.2f} of the layer, which has its multiply-adds"
            )
        if ours and copy:
            lines.append(f"{_title(entry)}: {ours / copy:.1f} of a copy of its arguments")
    return lines


def _ms(entry: Mapping[str, Any], contender: str) -> float | None:
    """The time of a step of a contender; None where there is none."""
    return entry["contenders"].get(contender, {}).get("step_ms")


def _extents(entry: Mapping[str, Any]) -> tuple[int, ...]:
    return entry["batch"], entry["steps"], entry["width"]


def _title(entry: Mapping[str, Any]) -> str:
    batch, steps, width = _extents(entry)
    return f"{entry['loop']}, batch {batch}, {steps} steps, {width} wide"


def report(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    rows, notes = [], []
    for entry in result["loops"]:
        rows.append([_title(entry), *_cells(entry)])
        for contender, measured in entry["contenders"].items():
            if "error" in measured:
                notes.append(f"{_title(entry)}: {contender} failed: {measured['error']}")
        if loud := [n for n, m in entry["contenders"].items() if not m.get("quiet", True)]:
            notes.append(f"{_title(entry)}: never alone: {', '.join(loud)}: NOT QUIET")
    return "\n".join(
        [
            table(HEADER, rows),
            "",
            *notes,
            *summary(result["loops"]),
            "ratio: graphgrad's time over torch's, eager or compiled, whichever is faster.",
            "MB: growth of resident memory since libraries were loaded, at most.",
            "first step: import, compilation and one step. again: in a second process, which "
            "finds what the first has compiled; the times and the memory are its.",
            machine_of(result),
        ]
    )


def _cells(entry: Mapping[str, Any]) -> list[str]:
    def text(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    times = [text(_ms(entry, n), 2) for n in (OURS, *_OTHERS)]
    ours = entry["contenders"].get(OURS, {"error": ""})
    if "error" in ours:
        return [*times, *[""] * (len(HEADER) - 1 - len(times))]
    memory = ours["memory"] and ours["memory"]["peak_growth_mb"]
    return [
        *times,
        text(entry["ratio"], 2),
        text(memory, 0),
        text(entry["memory_ratio"], 2),
        text(ours["first_step_seconds"], 1),
        text(ours["first_step_again_seconds"], 1),
        text(max(turn["load"] for turn in ours["turns"]), 2),
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    chosen = [name for name in LOOP_CONTENDERS if name not in (BEFORE, COPY)]
    usual = [name for name in chosen if name != DERIVED]
    add("--json", action="store_true", help="print one JSON object")
    add("--loops", type=some_of(LOOPS), default=list(LOOPS), help=f"of {', '.join(LOOPS)}")
    add("--contenders", type=some_of(chosen), default=usual, help=f"of {', '.join(chosen)}")
    add("--before", type=Path, metavar="TREE", help=f"another checkout, which competes as {BEFORE}")
    add("--threads", type=positive, default=min(2, usable_cores()), help="of each contender")
    add_clock(parser)
    add_pace(parser, 5, turn_seconds=1.0, max_load=0.1, pause=5.0, most_seconds=60.0)
    for extent in EXTENTS:
        add(f"--{extent}", type=_numbers, help="one or several, instead of each loop's own")
    arguments = parser.parse_args()
    check_contenders(parser, arguments)
    check_clock(parser, arguments)
    return arguments


def _numbers(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def chosen_loops(arguments: argparse.Namespace) -> list[tuple[str, Loop]]:
    """Return the loops with all combinations of the extents that the command line gives."""
    given = {e: values for e in EXTENTS if (values := getattr(arguments, e)) is not None}
    return [
        (name, dataclasses.replace(LOOPS[name], **dict(zip(given, extents, strict=True))))
        for name in arguments.loops
        for extents in itertools.product(*given.values())
    ]


def main() -> None:
    arguments = parse_arguments()
    # Without this, a terminated benchmark would leave stopped processes behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    measured = []
    for name, loop in chosen_loops(arguments):
        entry = dataclasses.asdict(loop) | {"loop": name}
        say(_title(entry))
        measured.append(measure(name, loop, arguments))
    given = {**vars(arguments), "before": arguments.before and arguments.before.name}
    result = {
        "benchmark": "loops",
        "machine": facts(),
        "versions": versions(),
        "settings": {key: value for key, value in given.items() if key != "json"},
        "loops": measured,
    }
    print(json.dumps(result, indent=1) if arguments.json else report(result))
    if any("error" in entry["contenders"].get(OURS, {}) for entry in measured):
        sys.exit(1)


if __name__ == "__main__":
    main()
