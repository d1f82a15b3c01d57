"""What training steps have reached beside PyTorch's best, and the ratchet of it.

    python bench/step.py --json --models … --contenders graphgrad,torch,… > step.json
    python bench/limits.py step.json […]

The second lowers the ratios in `limits.json`, by processor, to those that the results have reached,
where the machine was quiet and torch's compiler competed; it never raises one. `step.py` compares
with them. The goals there are the project's, on every processor.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMITS = Path(__file__).with_name("limits.json")
OURS, COMPILED = "graphgrad", "torch_compile"

PLAIN = ("torch", "torch_channels_last", COMPILED, "torch_compile_channels_last")
"""PyTorch's contenders, as they stand."""

SLACK = 1.05
"""How much worse than the limit a ratio may be: what equal runs differ by."""


@dataclass(frozen=True)
class Reached:
    """A model's time beside that of PyTorch's best.

    Attributes
    ----------
    model, best : str
        The best of PyTorch's contenders, as they stand and not in mixed precision.
    ratio : float
        Graphgrad's time over the best's.
    is_quiet, is_compiled : bool
        Whether the machine was quiet; whether torch's compiler competed.
    """

    model: str
    best: str
    ratio: float
    is_quiet: bool
    is_compiled: bool

    def verdict(self, limit: Mapping[str, Any], processor: str) -> str:
        """A line that compares with the limit and with the goal, where there are any."""
        parts = [f"{self.model}: {self.ratio:.2f} of the time of {self.best}"]
        lowest = limit.get("ratio", {}).get(processor)
        if lowest is not None:
            is_within = self.ratio <= SLACK * lowest
            parts.append(f"{'within' if is_within else 'SHORT of'} {lowest:.2f}")
        if "goal" in limit:
            parts.append(f"goal {limit['goal']:.2f} {self._of_goal(limit['goal'])}")
        return ", ".join(parts)

    def _of_goal(self, goal: float) -> str:
        return "reached" if self.ratio <= goal else "not reached"


def reached(models: Mapping[str, Any]) -> Iterator[Reached]:
    """What was reached by the models of a result of `step.py` in which both competed."""
    for model, entry in models.items():
        measured = {n: f for n, f in entry["contenders"].items() if "error" not in f}
        theirs = [name for name in PLAIN if name in measured]
        if OURS in measured and theirs:
            best = min(theirs, key=lambda name: measured[name]["step_ms"])
            ratio = measured[OURS]["step_ms"] / measured[best]["step_ms"]
            is_quiet = all(measured[name]["quiet"] for name in (OURS, *theirs))
            yield Reached(model, best, ratio, is_quiet, COMPILED in theirs)


def verdicts(result: Mapping[str, Any]) -> list[str]:
    """A line for each model of a result; none where models or contenders are not as they stand."""
    settings = result["settings"]
    if any(settings.get(name) is not None for name in ("isa", "batch", "width")):
        return []
    limits, processor = read(), result["mcpu"]
    return [
        each.verdict(limits.get(each.model, {}), processor) for each in reached(result["models"])
    ]


def ratcheted(
    limits: Mapping[str, Any], found: Iterator[Reached], processor: str
) -> dict[str, Any]:
    """The limits, lowered to what was reached on a processor, as LLVM names it."""
    lowered = dict(limits)
    for each in found:
        if each.is_quiet and each.is_compiled:
            limit = lowered.get(each.model, {})
            ratios = limit.get("ratio", {})
            lowest = min(round(each.ratio, 3), ratios.get(processor, math.inf))
            lowered[each.model] = {
                **limit,
                "ratio": dict(sorted({**ratios, processor: lowest}.items())),
            }
    return dict(sorted(lowered.items()))


def read() -> dict[str, Any]:
    """The limits by model."""
    limits: dict[str, Any] = json.loads(LIMITS.read_text(encoding="utf-8"))
    return limits


def main() -> None:
    """Lower the limits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path, help="printed by step.py --json")
    limits = read()
    for path in parser.parse_args().results:
        result = json.loads(path.read_text(encoding="utf-8"))
        for line in verdicts(result):
            print(line)
        if verdicts(result):
            limits = ratcheted(limits, reached(result["models"]), result["mcpu"])
    lines = [f"  {json.dumps(model)}: {json.dumps(limit)}" for model, limit in limits.items()]
    LIMITS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
