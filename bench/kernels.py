"""Speed of kernels: convolutions, products of matrices and their gradients, beside torch.

    python bench/kernels.py [--json] [--groups resnet18,sgemm] [--threads 2] [--quick] [--scaling]

Each contender is one process, in which a kernel is compiled once. Values are compared with torch's
before anything is timed: a wrong kernel has no time. Contenders take turns in rounds, the others
stopped; a turn during which other programs kept the machine busy is rejected and taken again.
Inputs stay in cache from call to call if they fit. Operations are those of the direct form, so
winograd may exceed the machine's peak, which is measured in the same run.

On a machine that others use, ``--threads 1 --cpu-time`` still gives fair ratios, if rough ones.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import re
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from field import Field, add_clock, add_pace, chosen_pace, positive, say, some_of
from kernel_cases import Case
from kernel_entrants import REFERENCE, Entrant, Entrants, entrants
from kernel_groups import DEFAULT_GROUPS, GROUPS, cases
from kernel_report import report, summary
from machine import facts, usable_cores, versions
from roofline import peak

TOLERANCE = 2e-4
"""Largest difference from torch's values that is not wrong, to the largest value: sums of 400,000
float32 in different orders come near it."""

MOST_STEPS = 20_000
QUICK_ROUNDS = 2
QUICK_CASES = 4  # of each group


def main() -> None:
    arguments = parse_arguments()
    # Without this, a terminated benchmark would leave stopped processes behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    thread_counts = sorted({1, arguments.threads}) if arguments.scaling else [arguments.threads]
    peaks = {str(threads): peak(threads, arguments.clock) for threads in thread_counts}
    for threads, found in peaks.items():
        say(f"{threads} thread(s): {found['gflops']:.0f} GFLOP/s, {found['gb_per_s']:.0f} GB/s")
    pool = Entrants(entrants(arguments.threads, arguments.scaling), arguments.clock)
    try:
        measured = measure_all(chosen_cases(arguments), pool, peaks, arguments)
    finally:
        pool.close()
    settings = {key: value for key, value in vars(arguments).items() if key != "json"}
    result = {
        "benchmark": "kernels",
        "machine": facts(),
        "versions": versions(),
        "settings": settings,
        "peaks": peaks,
        "cases": measured,
        "summary": summary(measured),
    }
    print(json.dumps(result, indent=1) if arguments.json else report(result))
    if any("error" in found for entry in measured for found in entry["contenders"].values()):
        sys.exit(1)


def chosen_cases(arguments: argparse.Namespace) -> dict[Case, list[str]]:
    """Return the cases that the command line asks for, with the groups of each."""
    found = cases(arguments.groups)
    if arguments.quick:
        found = {
            case: groups
            for group in arguments.groups
            for case, groups in _spread(
                {c: g for c, g in found.items() if g[0] == group}, QUICK_CASES
            ).items()
        }
    return {
        case: groups
        for case, groups in found.items()
        if re.search(arguments.match, f"{case.work.name} {case.part}")
    }


def _spread(found: dict[Case, list[str]], count: int) -> dict[Case, list[str]]:
    """Return some cases, evenly spread over those found."""
    every = max(1, -(-len(found) // count))
    return dict(list(found.items())[every // 2 :: every])


def measure_all(
    chosen: dict[Case, list[str]],
    pool: Entrants,
    peaks: dict[str, dict[str, float]],
    arguments: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Return the figures of all cases, and tell of progress."""
    start, measured = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for number, (case, groups) in enumerate(chosen.items(), start=1):
            entry = measure(case, "derived" in groups, pool, peaks, arguments, Path(folder))
            measured.append({"groups": groups, **entry})
            times = ", ".join(
                f"{name} {found['gflops']:.0f}" if "gflops" in found else f"{name} FAILED"
                for name, found in entry["contenders"].items()
            )
            minutes = (time.perf_counter() - start) / 60
            say(
                f"{number}/{len(chosen)} {minutes:.1f} min  {case.work.name} {case.part}: {times} "
                "GFLOP/s"
            )
    return measured


def measure(
    case: Case,
    derived: bool,
    pool: Entrants,
    peaks: dict[str, dict[str, float]],
    arguments: argparse.Namespace,
    folder: Path,
) -> dict[str, Any]:
    """Return the figures of one case; a contender that fails, or is wrong, has an error."""
    field = Field(chosen_pace(arguments, MOST_STEPS))
    competing = [entrant for entrant in pool.all if entrant.competes(case, derived)]
    files = {entrant.name: folder / f"{entrant.name}.npy" for entrant in competing}
    for entrant in competing:
        field.enter(entrant.name, partial(pool.prepared, entrant, case, files[entrant.name]))
    if REFERENCE not in field.running:
        raise SystemExit(f"{case.work.name} {case.part}: torch failed: {field.errors[REFERENCE]}")
    for name in set(field.running) - {REFERENCE}:
        error = difference(files[name], files[REFERENCE])
        if not error <= TOLERANCE:  # NaN is wrong as well
            field.errors[name] = f"the values are wrong: they differ from torch's by {error:.1e}"
            del field.running[name]
    for file in files.values():
        file.unlink(missing_ok=True)
    records = field.compete()
    pool.forget(field.errors)
    return {
        "name": case.work.name,
        "part": case.part,
        "gflop": case.work.operations / 1e9,
        "megabytes": case.bytes / 1e6,
        "contenders": {
            entrant.name: {"error": field.errors[entrant.name]}
            if entrant.name in field.errors
            else figures(case, entrant, records[entrant.name], peaks)
            for entrant in competing
        },
    }


def difference(given: Path, expected: Path) -> float:
    """Return the largest difference between two files of values, to the largest value."""
    a, b = np.load(given), np.load(expected)
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max() / np.abs(b).max())


def figures(
    case: Case, entrant: Entrant, record: Any, peaks: dict[str, dict[str, float]]
) -> dict[str, Any]:
    """Return what was measured of one contender.

    The roofline is the time that operations or bytes need at least, whichever is longer (Williams,
    Waterman and Patterson, *Roofline: an insightful visual performance model*, 2009).
    """
    seconds = record.median_seconds()
    best = peaks[str(entrant.threads)]
    compute = case.work.operations / (1e9 * best["gflops"])
    memory = case.bytes / (1e9 * best["gb_per_s"])
    return {
        "threads": entrant.threads,
        "ms": 1e3 * seconds,
        "gflops": case.work.operations / seconds / 1e9,
        "of_peak": compute / seconds,
        "of_roofline": max(compute, memory) / seconds,
        "bound_by": "compute" if compute >= memory else "memory",
        "quiet": bool(record.quiet),
        "loads": [turn.load for turn in record.counted],
        "turns_taken": len(record.turns),
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add(
        "--groups",
        type=some_of(GROUPS),
        default=DEFAULT_GROUPS,
        help=f"of {', '.join(GROUPS)}; default: all but resnet50_32",
    )
    add("--match", default="", metavar="REGEX", help="only cases whose name and part it finds")
    add("--threads", type=positive, default=min(2, usable_cores()), help="of each contender")
    add("--scaling", action="store_true", help="time one thread as well")
    add_clock(parser)
    add("--quick", action="store_true", help="few cases of each group, and two rounds")
    add_pace(parser, 3, turn_seconds=0.08, max_load=0.3, pause=0.3, most_seconds=3.0)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = QUICK_ROUNDS
    if arguments.clock == "process_time":
        if arguments.threads > 1 or arguments.scaling:
            parser.error("--cpu-time adds up all threads; give --threads 1, and no --scaling")
        arguments.max_load = math.inf
    if importlib.util.find_spec("torch") is None:
        parser.error(
            "torch is missing, which values and times are compared with; install graphgrad's extra "
            "'bench': pip install 'graphgrad[bench]'"
        )
    return arguments


if __name__ == "__main__":
    main()
