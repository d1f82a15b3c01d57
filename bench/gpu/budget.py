"""Kernels, bytes and the predicted time of a training step on a GPU, which need none to be known.

    python bench/gpu/budget.py [NETWORK …] [--precision bfloat16] [--arch sm_90] [--json] [--check]
                               [--ratchet] [--calls 10]

Lowers the step of a network of `full_networks` (torch for those that its exporter writes) with
cuDNN's plans (`pip install 'graphgrad[cuda-libs]'`) and counts, as `graphgrad.lower.cuda.costs`
says. `graphgrad bench MODEL --target h200 --predict` tells the same of a file of one's own.
`--calls` tells which kernels and calls take most of it.

`--check` exits with 1, and names what is worse than `budgets.json`, or short of a goal of the
project; `--ratchet` lowers the figures in that file to those that are reached.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from full_networks import NETWORKS
from table import table

import graphgrad as gg
from graphgrad.lower import pipeline
from graphgrad.lower.cuda.architecture import compute_capability
from graphgrad.lower.cuda.costs import Cost, call_costs
from graphgrad.train.update import STEP

RATCHET = Path(__file__).with_name("budgets.json")

GOALS = {
    "resnet50-64 bfloat16 sm_90": {"kernels": 500, "gigabytes": 23.0, "milliseconds": 7.5},
    "resnet50-256 bfloat16 sm_90": {"milliseconds": 29.0},
    "bert-base-32 bfloat16 sm_90": {"milliseconds": 14.0},
    "gpt2-4 bfloat16 sm_90": {"milliseconds": 4 * 1024 / 600_000 * 1e3},
}
"""What the project aims at."""

SLACK = 1.01
"""How much worse than the ratchet a figure may be: fewer launches may cost a few more bytes."""


@dataclass(frozen=True)
class Budget:
    """The costs of a step, in all.

    Attributes
    ----------
    network, precision, arch : str
    calls, library_calls, kernels : int
        Calls in all, those of cuDNN among them, and launches.
    gigabytes, milliseconds : float
    """

    network: str
    precision: str
    arch: str
    calls: int
    library_calls: int
    kernels: int
    gigabytes: float
    milliseconds: float

    @property
    def key(self) -> str:
        """By which the ratchet and the goals know it."""
        return f"{self.network} {self.precision} {self.arch}"

    def figures(self) -> dict[str, float]:
        """What is ratcheted."""
        return {
            "kernels": self.kernels,
            "gigabytes": round(self.gigabytes, 3),
            "milliseconds": round(self.milliseconds, 3),
        }


def budget(network: str, precision: str, arch: str) -> tuple[Budget, list[Cost]]:
    """Lower a network's training step; return its costs, and those of its calls."""
    target = gg.target({"kind": "cuda", "arch": arch})
    mod = NETWORKS[network].step(precision, arch)
    lowered = pipeline.lower(mod, target, tf32=precision == "tf32")
    calls = call_costs(lowered, STEP, compute_capability(arch))
    result = Budget(
        network,
        precision,
        arch,
        len(calls),
        sum(call.is_of_library for call in calls),
        sum(call.launches for call in calls),
        sum(call.bytes for call in calls) / 1e9,
        sum(call.seconds for call in calls) * 1e3,
    )
    return result, calls


def shortfalls(budgets: Sequence[Budget], ratchet: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What is worse than the ratchet, or is not in it."""
    worse = []
    for each in budgets:
        if each.key not in ratchet:
            worse.append(f"{each.key} is not in {RATCHET.name}: add it by --ratchet")
            continue
        for name, value in each.figures().items():
            if value > ratchet[each.key][name] * SLACK:
                worse.append(f"{each.key}: {value:g} {name}, of {ratchet[each.key][name]:g}")
    return worse


def short_of_goals(budgets: Sequence[Budget]) -> list[str]:
    """What is above the goals of the project."""
    return [
        f"{each.key}: {each.figures()[name]:g} {name}, the goal is {goal:g}"
        for each in budgets
        for name, goal in GOALS.get(each.key, {}).items()
        if each.figures()[name] > goal
    ]


def _ratcheted(
    budgets: Sequence[Budget], ratchet: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """The ratchet with figures lowered to those that are reached."""
    result = {key: dict(figures) for key, figures in ratchet.items()}
    for each in budgets:
        before = result.get(each.key, {})
        result[each.key] = {
            name: min(value, before.get(name, value)) for name, value in each.figures().items()
        }
    return dict(sorted(result.items()))


def text(budgets: Sequence[Budget]) -> str:
    """The table for the terminal."""
    header = ["network", "precision", "arch", "calls", "cuDNN", "kernels", "GB", "ms", "goals"]
    rows = [
        [
            each.network,
            each.precision,
            each.arch,
            *map(str, (each.calls, each.library_calls, each.kernels)),
            f"{each.gigabytes:.2f}",
            f"{each.milliseconds:.2f}",
            ", ".join(f"{value:g} {name}" for name, value in GOALS.get(each.key, {}).items()),
        ]
        for each in budgets
    ]
    return table(header, rows)


def costliest(calls: Sequence[Cost], count: int = 10) -> str:
    """The kernels and calls of cuDNN that take most of a step: how often, and what one moves."""
    totals: Counter[Cost] = Counter()
    times: Counter[Cost] = Counter(calls)
    for call in calls:
        totals[call] += call.seconds  # type: ignore[assignment]
    return "\n".join(
        f"  {1e3 * seconds:8.3f} ms {times[call]:4d} x {call.bytes / 1e6:7.1f} MB {call.name[:90]}"
        for call, seconds in totals.most_common(count)
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted(NETWORKS)
    parser.add_argument("networks", nargs="*", default=names, help=f"of {', '.join(names)}")
    parser.add_argument("--precision", nargs="+", default=["bfloat16"])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 if something is short")
    parser.add_argument("--ratchet", action="store_true", help="write what is reached")
    parser.add_argument("--calls", type=int, default=10, help="how many of the costliest to name")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.networks) - set(names)):
        parser.error(f"there is no network {unknown[0]}; there are {', '.join(names)}")
    return arguments


def main() -> int:
    """Count; return 1 if `--check` finds something above the ratchet, or a goal."""
    arguments = _arguments()
    budgets = []
    for network in arguments.networks:
        for precision in arguments.precision:
            result, calls = budget(network, precision, arguments.arch)
            budgets.append(result)
            print(f"{result.key}\n{costliest(calls, arguments.calls)}", file=sys.stderr)
    ratchet = json.loads(RATCHET.read_text(encoding="utf-8")) if RATCHET.exists() else {}
    worse = [*shortfalls(budgets, ratchet), *short_of_goals(budgets)]
    if arguments.ratchet:
        written = json.dumps(_ratcheted(budgets, ratchet), indent=2)
        RATCHET.write_text(written + "\n", encoding="utf-8")
    if arguments.json:
        print(json.dumps({"budgets": [asdict(each) for each in budgets], "worse": worse}))
    else:
        print("\n".join([text(budgets), *(worse if arguments.check else ())]))
    return int(arguments.check and bool(worse))


if __name__ == "__main__":
    sys.exit(main())
