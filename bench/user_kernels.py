"""Kernels that a user wrote, each with its derived gradient, beside the same in PyTorch.

    python bench/user_kernels.py [--json] [--kernels spline,sinkhorn] [--rounds 9]

The kernels of `examples/kernels`, as tensor expressions and in TVMScript; nothing in graphgrad
knows any of them. Value and gradients by all floats are compared with PyTorch's before anything is
timed. Contenders take turns in rounds, the others stopped, and the ratio is the median over the
rounds in which nothing else kept the machine busy; over all of them, if there was none.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from field import Field, add_pace, chosen_pace, positive, say, some_of
from loops import disagreement, gradients_file
from machine import facts, machine_of, usable_cores, versions
from process import Contender
from rounds import Record, figures_of
from step import tell
from table import table
from user_kernel import KERNELS
from workload import Workload

OURS = {"tensors": "graphgrad", "script": "graphgrad, TVMScript"}
REFERENCE, COMPILED = "torch", "torch_compile"
MOST_STEPS = 1_000
HEADER = ["kernel", "ms", "TVMScript", "torch", "compiled", "ratio", "TVMScript"]


def contenders_of(kernel: str, large: bool) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the module and the options of each contender."""
    ours, torch = "contenders.user_kernels_ours", "contenders.user_kernels_torch"
    told = {"kernel": kernel, "large": large}
    return {
        REFERENCE: (torch, told),
        COMPILED: (torch, told | {"compiled": True}),
        **{name: (ours, told | {"form": form}) for form, name in OURS.items()},
    }


def measure(kernel: str, settings: argparse.Namespace) -> dict[str, Any]:
    """Compare the contenders on one kernel; a failed one is reported with its error."""
    field = Field(chosen_pace(settings, MOST_STEPS), tell)
    known = contenders_of(kernel, not settings.small)
    with tempfile.TemporaryDirectory() as folder:
        workload = Workload(Path(folder))
        try:
            for name in known:
                say(f"  {name}: first step")
                field.enter(name, partial(started, name, workload, settings.threads, known))
            for name in set(field.running) - {REFERENCE}:
                if found := disagreement(name, REFERENCE, workload.folder):
                    field.fail(name, found)
            records = field.compete()
        finally:
            field.close()
    figures = {
        name: figures_of(records[name]) if name in records else {"error": field.errors[name]}
        for name in known
    }
    return {"kernel": kernel, "contenders": figures, "ratios": ratios(records)}


def started(
    name: str, workload: Workload, threads: int, known: Mapping[str, tuple[str, dict[str, Any]]]
) -> Contender:
    """Return a contender that has made its first step, and left what it computed.

    Raises
    ------
    ContenderError
    """
    contender = Contender(name, workload, threads, known)
    contender.ask({"gradients": str(gradients_file(workload.folder, name))})
    return contender


def ratios(records: Mapping[str, Record]) -> dict[str, float | None]:
    """Return the time of each form over that of torch at its fastest; None without both."""
    torch = [records[name] for name in (REFERENCE, COMPILED) if name in records]
    if not torch:
        return dict.fromkeys(OURS)
    best = min(torch, key=Record.median_seconds)
    return {
        form: paired(records[name], best) if name in records else None
        for form, name in OURS.items()
    }


def paired(ours: Record, theirs: Record) -> float:
    """Return the median over rounds of the ratio of two contenders' times.

    Rounds count in which both were alone; all of them only if there is none.
    """
    rounds = list(zip(ours.turns, theirs.turns, strict=False))
    alone = [each for each in rounds if all(t.load <= ours.rules.max_load for t in each)]
    return statistics.median(
        statistics.median(a.seconds) / statistics.median(b.seconds) for a, b in alone or rounds
    )


def means(measured: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return the geometric mean of each form's ratios; None if one is missing."""
    found = {form: [entry["ratios"][form] for entry in measured] for form in OURS}
    return {
        form: statistics.geometric_mean(each) if all(each) else None for form, each in found.items()
    }


def report(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    rows, notes = [], []
    for entry in result["kernels"]:
        contenders = entry["contenders"]
        times = [contenders[n] for n in (*OURS.values(), REFERENCE, COMPILED)]
        rows.append(
            [
                entry["kernel"],
                *(f"{t['step_ms']:.2f}" if "error" not in t else "failed" for t in times),
                *(_text(entry["ratios"][form]) for form in OURS),
            ]
        )
        notes += [
            f"{entry['kernel']}: {name} failed: {figures['error']}"
            for name, figures in contenders.items()
            if "error" in figures
        ]
    mean = [_text(result["geometric_mean"][form]) for form in OURS]
    rows.append(["geometric mean", "", "", "", "", *mean])
    return "\n".join(
        [
            table(HEADER, rows),
            "",
            *notes,
            "ms: value and gradients. ratio: graphgrad's time over torch's, eager or compiled, "
            "whichever is faster.",
            machine_of(result),
        ]
    )


def _text(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add("--kernels", type=some_of(KERNELS), default=KERNELS, help=f"of {', '.join(KERNELS)}")
    add("--small", action="store_true", help="the sizes that the examples check")
    add("--threads", type=positive, default=min(2, usable_cores()), help="of each contender")
    add_pace(parser, 9, turn_seconds=0.2, max_load=0.3, pause=0.0, most_seconds=10.0)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    # Without this, a terminated benchmark would leave stopped processes behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    measured = []
    for kernel in arguments.kernels:
        say(kernel)
        measured.append(measure(kernel, arguments))
    result = {
        "benchmark": "user_kernels",
        "machine": facts(),
        "versions": versions(),
        "settings": {key: value for key, value in vars(arguments).items() if key != "json"},
        "kernels": measured,
        "geometric_mean": means(measured),
    }
    print(json.dumps(result, indent=1) if arguments.json else report(result))
    if any("error" in figures for entry in measured for figures in entry["contenders"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
