"""What came of a run: kept in files that are whole after every line, and shown as a table."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import paths  # noqa: F401 (where `table` is found)
from table import table

PASSED, FAILED, BROKEN, SKIPPED = "passed", "FAILED", "BROKEN", "not run"
MEASURED, OUT_OF_MEMORY = "measured", "out of memory"
STATUSES = (PASSED, FAILED, BROKEN, SKIPPED, MEASURED, OUT_OF_MEMORY)
"""A wrong result; a process that died, hung or raised; and what was not tried, with the reason."""

NO_TIME = "no time was left"

CHECK_HEADER = ["check", "by", "status", "momenta", "torch CPU", "worst tensor", "s"]
FURTHEST_HEADER = ["calls", "times", "ms", "predicted ms"]
BENCHMARK_HEADER = [
    "timed model, contender",
    "status",
    "ms per step",
    "ratio",
    "first step s",
    "MB",
    "MHz",
    "°C",
    "W",
]


@dataclass
class Line:
    """What came of one check, or of one contender of a benchmark.

    Attributes
    ----------
    kind : str
        ``check``, ``tune`` or ``benchmark``.
    name, by : str
        What was run, and by whom.
    status : str
        Of `STATUSES`.
    reason : str
        Why, unless it is good.
    seconds : float
    figures : dict
    """

    kind: str
    name: str
    by: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def is_bad(self) -> bool:
        """Whether the run must not count as good: something of ours is wrong or broken."""
        ours = self.by.startswith("graphgrad")
        return self.status == FAILED or (ours and self.status == BROKEN)


class Journal:
    """The lines so far, written to ``results.json`` and ``results.txt`` with each new one.

    Parameters
    ----------
    folder : path
        Made if it is missing.
    facts : dict
        Of the machine, the versions and the settings.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]):
        self._lines: dict[tuple[str, str, str], Line] = {}
        self._folder = folder
        self._facts = facts
        self._finished = False
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def lines(self) -> list[Line]:
        """All lines, in the order of their first appearance."""
        return list(self._lines.values())

    def figures(self, kind: str, name: str, by: str) -> dict[str, Any] | None:
        """Return the figures of a line; None if there is no such line."""
        line = self._lines.get((kind, name, by))
        return None if line is None else line.figures

    def add(self, line: Line) -> None:
        """Keep a line, in the place of an earlier one of the same, and tell of it."""
        self._lines[line.kind, line.name, line.by] = line
        self._write()
        say(f"{line.status:13} {line.kind} {line.name}, {line.by} ({line.seconds:.0f} s)", line)

    def finish(self) -> None:
        """Note that nothing is left to do."""
        self._finished = True
        self._write()

    def as_json(self) -> dict[str, Any]:
        """Return everything."""
        return {
            "benchmark": "gpu",
            "finished": self._finished,
            **self._facts,
            "lines": [asdict(line) for line in self.lines],
        }

    def as_text(self) -> str:
        """Return the tables, and the reasons of what is not good."""
        checks = [line for line in self.lines if line.kind == "check"]
        benchmarks = [line for line in self.lines if line.kind == "benchmark"]
        parts = []
        if checks:
            parts.append(table(CHECK_HEADER, [_check_cells(line) for line in checks]))
            parts.append(
                "momenta: distance of the momenta, sums of gradients, from float64, relative to "
                "their norm; torch CPU: the\nsame of torch in float32 on a CPU. worst tensor: "
                "relative to its own norm."
            )
        if benchmarks:
            ours = {
                line.name: line.figures["step_ms"]
                for line in benchmarks
                if line.by == "graphgrad fp32" and line.status == MEASURED
            }
            rows = [_benchmark_cells(line, ours.get(line.name)) for line in benchmarks]
            parts.append(table(BENCHMARK_HEADER, rows))
            parts.append(
                "ratio: time over that of graphgrad fp32. MB: growth of device memory in use "
                "since the context was made.\nMHz, °C, W: medians after the turns."
            )
        parts += [text for line in benchmarks if (text := _furthest(line))]
        parts += [_device(line) for line in self.lines if line.kind == "tune" and line.figures]
        reasons = [
            f"{line.status}: {line.name}, {line.by}: {line.reason.splitlines()[0]}"
            for line in self.lines
            if line.reason
        ]
        counts = ", ".join(
            f"{sum(line.status == status for line in self.lines)} {status}" for status in STATUSES
        )
        ending = [] if self._finished else ["NOT FINISHED: the run goes on, or was stopped."]
        return "\n\n".join([*parts, "\n".join([*reasons, counts, *ending])]) + "\n"

    def _write(self) -> None:
        """Write both files anew, each in one step."""
        replace(self._folder / "results.json", json.dumps(self.as_json(), indent=1))
        replace(self._folder / "results.txt", self.as_text())


def say(text: str, line: Line | None = None) -> None:
    """Tell of progress where it does not mix with the result."""
    reason = f": {line.reason}" if line is not None and line.reason else ""
    print(f"{text}{reason}"[:400], file=sys.stderr, flush=True)


def replace(path: Path, text: str) -> None:
    """Write a file anew, in one step."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _check_cells(line: Line) -> list[str]:
    figures = line.figures
    if not figures:
        return [line.name, line.by, line.status, "", "", "", f"{line.seconds:.1f}"]
    tensor, error = figures["worst"]
    in_float64 = line.name.endswith("float64")
    return [
        line.name,
        line.by,
        line.status,
        f"{figures['distances']['momentum']:.1e}",
        "" if in_float64 else f"{figures['torch_cpu_distances']['momentum']:.1e}",
        f"{error:.1e} {tensor}",
        f"{line.seconds:.1f}",
    ]


def _furthest(line: Line) -> str:
    """The calls of a step that are furthest from their prediction, as a table; nothing if unknown.

    Each is waited for, with nothing of what it reads in the cache.
    """
    if "furthest" not in line.figures:
        return ""
    rows = [
        [row["name"], str(row["calls"]), f"{row['measured_ms']:.3f}", f"{row['predicted_ms']:.3f}"]
        for row in line.figures["furthest"]
    ]
    head = f"{line.name}, {line.by}: predicted {line.figures['predicted_ms']:.2f} ms; furthest from"
    return f"{head} their prediction:\n{table(FURTHEST_HEADER, rows)}"


def _device(line: Line) -> str:
    """What the device is, where it is not what was assumed, and how many problems were timed."""
    figures = line.figures
    about = f"{figures['device'].get('device')}, cuDNN {figures['device'].get('cudnn')}"
    others = [f"{n} {a}, assumed {b}" for n, (a, b) in figures["differs_from_assumed"].items()]
    return "\n".join(
        [
            f"{about}: plans of {figures['problems']} of {figures['of']} problems were timed",
            *others,
        ]
    )


def _benchmark_cells(line: Line, ours: float | None) -> list[str]:
    figures = line.figures
    first = [f"{line.name}, {line.by}", line.status]
    if "step_ms" not in figures:
        return [*first, *[""] * (len(BENCHMARK_HEADER) - 2)]
    memory, gpu = figures["memory"], figures["gpu"]
    return [
        *first,
        f"{figures['step_ms']:.2f}",
        "" if ours is None else f"{figures['step_ms'] / ours:.2f}",
        f"{figures['first_step_seconds']:.1f}",
        "" if memory is None else f"{memory['growth_mb']:.0f}",
        *(
            "" if gpu is None else gpu[key]
            for key in ("clocks.sm", "temperature.gpu", "power.draw")
        ),
    ]
