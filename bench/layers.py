"""Layers whose time is that of moving their tensors, beside torch and beside a copy of memory.

    python bench/layers.py [--json] [--match norm] [--threads 2]

Norms, softmax, activations, pooling and resizing, forward and with all gradients. Values are
compared with torch's before anything is timed. ``of copy`` is the speed at which the tensors are
moved, each as often as it must be, to that of a copy of arrays that fit no cache, measured in the
same run; tensors that stay in cache between calls may be faster than that.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from field import Field, add_clock, add_pace, check_clock, chosen_pace, positive, say
from kernel_entrants import Entrant, Entrants
from kernels import MOST_STEPS, TOLERANCE, difference, peak
from layer_cases import LAYERS, PARTS, LayerCase
from machine import facts, usable_cores, versions
from table import table

OURS, TORCH = "graphgrad", "torch"
_MODULES = {OURS: "contenders.layers_ours", TORCH: "contenders.layers_torch"}


def measure(
    case: LayerCase, pool: Entrants, gb_per_s: float, arguments: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Return the figures of one case; a contender that fails, or is wrong, has an error."""
    field = Field(chosen_pace(arguments, MOST_STEPS))
    files = {entrant.name: folder / f"{entrant.name}.npy" for entrant in pool.all}
    for entrant in pool.all:
        field.enter(entrant.name, partial(pool.prepared, entrant, case, files[entrant.name]))
    if {OURS, TORCH} <= set(field.running):
        error = difference(files[OURS], files[TORCH])
        if not error <= TOLERANCE:  # NaN is wrong as well
            field.errors[OURS] = f"the values are wrong: they differ from torch's by {error:.1e}"
            del field.running[OURS]
    records = field.compete()
    pool.forget(field.errors)
    found: dict[str, Any] = {"name": case.work.name, "part": case.part, "bytes": case.bytes}
    for entrant in pool.all:
        if entrant.name in field.errors:
            found[entrant.name] = {"error": field.errors[entrant.name]}
            continue
        record = records[entrant.name]
        seconds = record.median_seconds()
        speed = case.bytes / 1e9 / seconds
        found[entrant.name] = {
            "ms": 1e3 * seconds,
            "gb_per_s": speed,
            "of_copy": speed / gb_per_s,
            "quiet": bool(record.quiet),
        }
    return found


def report(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    rows, errors = [], []
    for entry in result["cases"]:
        ours, torch = entry[OURS], entry[TORCH]
        errors += [
            f"{entry['name']} {entry['part']}: {name} failed: {entry[name]['error']}"
            for name in (OURS, TORCH)
            if "error" in entry[name]
        ]
        if "error" in ours or "error" in torch:
            continue
        noisy = "" if ours["quiet"] and torch["quiet"] else "NOT QUIET"
        rows.append(
            [
                f"{entry['name']} {entry['part']}",
                f"{ours['ms']:.3f}",
                f"{torch['ms']:.3f}",
                f"{torch['ms'] / ours['ms']:.2f}",
                f"{ours['gb_per_s']:.1f}",
                f"{ours['of_copy']:.2f}",
                noisy,
            ]
        )
    machine = result["machine"]
    return "\n".join(
        [
            table(["layer", "ms", "torch", "torch ÷ ours", "GB/s", "of copy", ""], rows),
            *errors,
            f"a copy moves {result['peak']['gb_per_s']:.0f} GB/s; {machine['processor']}, "
            f"{result['threads']} thread(s) on {machine['cores']} cores",
        ]
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add("--match", default="", metavar="REGEX", help="only layers whose name and part it finds")
    add("--threads", type=positive, default=min(2, usable_cores()), help="of each contender")
    add_clock(parser)
    add_pace(parser, 3, turn_seconds=0.08, max_load=0.3, pause=0.3, most_seconds=3.0)
    arguments = parser.parse_args()
    check_clock(parser, arguments)
    return arguments


def main() -> None:
    arguments = parse_arguments()
    cases = [LayerCase(layer, part) for layer in LAYERS for part in PARTS]
    cases = [c for c in cases if re.search(arguments.match, f"{c.work.name} {c.part}")]
    best = peak(arguments.threads, arguments.clock)
    entrants = [Entrant(name, module, arguments.threads) for name, module in _MODULES.items()]
    pool, measured = Entrants(entrants, arguments.clock), []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number, case in enumerate(cases, start=1):
                say(f"{number}/{len(cases)} {case.work.name} {case.part}")
                entry = measure(case, pool, best["gb_per_s"], arguments, Path(folder))
                measured.append(entry)
    finally:
        pool.close()
    result = {
        "benchmark": "layers",
        "machine": facts(),
        "versions": versions(),
        "threads": arguments.threads,
        "peak": best,
        "cases": measured,
    }
    print(json.dumps(result, indent=1) if arguments.json else report(result))
    if any("error" in entry[name] for entry in measured for name in _MODULES):
        sys.exit(1)


if __name__ == "__main__":
    main()
