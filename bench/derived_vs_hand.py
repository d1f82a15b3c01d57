"""Derived gradients beside those written by hand: body evaluations, kernels and time.

    python bench/derived_vs_hand.py [--json] [--match RE] [--rounds 15]
    python bench/derived_vs_hand.py --page      write docs/derived-vs-hand.md

Both are compiled for this host, and run in one process in turns; a time is the least of all
rounds, of outputs and gradients together. Evaluations are counted before anything is fused, those
of the outputs left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from kernel_work import body_evaluations, kernel_calls
from machine import facts, versions
from repository import ROOT
from rule_workloads import WORKLOADS
from table import table
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat, sample_inputs, sample_module
from graphgrad.ir.arrays import to_tensor
from graphgrad.ops.legalize import LEGALIZATIONS

PAGE = ROOT / "docs" / "derived-vs-hand.md"
MOST = 1.25
"""The ratio of times beyond which a derived gradient is slow."""

RULES = {"hand": "auto", "derived": "derived"}


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Return counts and times of both gradients of a workload."""
    op, call = WORKLOADS[name]
    primal = sample_module(op, call, "main", "float32")
    counts, runs, gradients = {}, {}, {}
    inputs = sample_inputs(call, np.random.default_rng(0), "float32")
    for kind, rules in RULES.items():
        mod = gg.vjp(primal, rules=rules)
        counts[kind] = _counts(mod)
        runs[kind] = _run(mod, inputs)
        gradients[kind] = flat(runs[kind]()[1])
    seconds = _least(runs, rounds)
    return {
        "workload": name,
        "op": op,
        "call": str(call),
        "evaluations": {kind: count["evaluations"] for kind, count in counts.items()},
        "kernels": {kind: count["kernels"] for kind, count in counts.items()},
        "seconds": seconds,
        "evaluations_ratio": _ratio({k: c["evaluations"] for k, c in counts.items()}),
        "time_ratio": _ratio(seconds),
        "difference": _difference(gradients["hand"], gradients["derived"]),
    }


def _counts(mod: tvm.IRModule) -> dict[str, int | None]:
    lowered = relax.transform.LegalizeOps(LEGALIZATIONS)(mod)
    both, primal = (body_evaluations(lowered, name) for name in ("main_vjp", "main"))
    return {
        "evaluations": None if both is None or primal is None else both - primal,
        "kernels": kernel_calls(lowered, "main_vjp") - kernel_calls(lowered, "main"),
    }


def _run(mod: tvm.IRModule, inputs: list[np.ndarray]) -> Callable[[], Any]:
    """Return what calls a compiled gradient, with cotangents that are the same for all."""
    function = relax.VirtualMachine(gg.compile(mod), tvm.cpu())["main_vjp"]
    generator = np.random.default_rng(1)
    cotangents = [
        generator.uniform(-1, 1, [int(e) for e in param.ty.shape]).astype(str(param.ty.dtype))
        for param in mod["main_vjp"].params[len(inputs) :]
    ]
    arguments = [to_tensor(array) for array in [*inputs, *cotangents]]
    return lambda: function(*arguments)


def _least(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the least time of each contender, that take turns."""
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for kind, run in runs.items():
            start = time.perf_counter()
            run()
            least[kind] = min(least[kind], time.perf_counter() - start)
    return least


def _ratio(values: Mapping[str, float | None]) -> float | None:
    derived, hand = values["derived"], values["hand"]
    return derived / hand if derived is not None and hand else None


def _difference(hand: list[np.ndarray], derived: list[np.ndarray]) -> float:
    """Return the distance of the derived gradients to the others, by the norm of all."""
    distance = sum(float(((a - b) ** 2).sum()) for a, b in zip(hand, derived, strict=True))
    return (distance / max(sum(float((a**2).sum()) for a in hand), 1e-30)) ** 0.5


HEADER = [
    "workload", "evaluations: hand", "derived", "ratio", "kernels: hand", "derived",
    "µs: hand", "derived", "ratio",
]  # fmt: skip


def rows(results: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row of the table for each workload."""
    return [
        [
            result["workload"],
            *(_text(result["evaluations"][kind], ",") for kind in RULES),
            _text(result["evaluations_ratio"]),
            *(str(result["kernels"][kind]) for kind in RULES),
            *(f"{1e6 * result['seconds'][kind]:,.0f}" for kind in RULES),
            _text(result["time_ratio"]),
        ]
        for result in results
    ]


def _text(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def mean_ratio(results: list[dict[str, Any]]) -> str:
    """Say how much time derived gradients take, on the whole."""
    ratios = [result["time_ratio"] for result in results]
    above = sum(ratio > MOST for ratio in ratios)
    mean = statistics.geometric_mean(ratios)
    return f"Time: {mean:.2f} as a geometric mean of {len(ratios)}; {above} above {MOST}."


NOTES = """\
An evaluation is a value that a stage stores; of a sum, each term. Stages of a rule that fusion
computes inside another one count all the same, and so do those of derived kernels. Nothing is
counted of sorting. The time is that of the outputs and all gradients.

All ops that have a rule are here, those too that only gradients consist of.

Where derived gradients evaluate more:

- cumsum, cumprod: a recurrence keeps all its states, and the cotangents that it adds up, in their
  order. The rules' sums are carried in float64, those of a recurrence in its own dtype.
- resampling by a table (resize, adaptive pooling): the rule reads the transposed table, and what is
  derived adds at the places that the table says.

Where they take more time for no more evaluations, it is what the schedules make of their kernels.
In max_pool_gather the rule knows that no element is in two windows, or which ones; what is derived
adds to zeros where the places say. In instance_norm the sums by channel go over the images once
more, because fusion by rows does not split them into sums of rows.

Whole networks train by both with `python bench/step.py --contenders graphgrad,graphgrad_derived`,
recurrent ones with `python bench/loops.py` and the same contenders."""


def page(result: dict[str, Any]) -> str:
    """Return docs/derived-vs-hand.md."""
    lines = [HEADER, ["---", *["---:"] * (len(HEADER) - 1)], *rows(result["workloads"])]
    machine = result["machine"]
    return "\n".join(
        [
            "# Derived gradients beside those written by hand",
            "",
            'Written by `python bench/derived_vs_hand.py --page`. float32; `rules="derived"` '
            "against",
            "graphgrad's rules.",
            "",
            NOTES,
            "",
            *(f"| {' | '.join(line)} |" for line in lines),
            "",
            mean_ratio(result["workloads"]),
            "",
            f"{machine['processor']}, {result['threads']} thread(s), Python {machine['python']}; "
            f"the least of {result['rounds']} rounds in turns.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--page", action="store_true", help=f"write docs/{PAGE.name}")
    parser.add_argument("--match", default="", metavar="REGEX", help="only what it finds")
    parser.add_argument("--rounds", type=int, default=15, help="calls of each contender")
    arguments = parser.parse_args()
    os.environ.setdefault("TVM_NUM_THREADS", "1")
    result = {
        "benchmark": "derived_vs_hand",
        "machine": facts(),
        "versions": versions(),
        "threads": int(os.environ["TVM_NUM_THREADS"]),
        "rounds": arguments.rounds,
        "workloads": [
            measure(name, arguments.rounds)
            for name in WORKLOADS
            if re.search(arguments.match, name)
        ],
    }
    if arguments.page:
        PAGE.write_text(page(result), "utf-8")
    elif arguments.json:
        print(json.dumps(result, indent=1))
    else:
        print(table(HEADER, rows(result["workloads"])))
        print(mean_ratio(result["workloads"]))


if __name__ == "__main__":
    main()
