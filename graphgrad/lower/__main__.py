"""The passes of lowering as a table: ``python -m graphgrad.lower [--target cuda] [--json]``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from ..ir.passes import TARGETS, Phase, Pipeline, Step
from .pipeline import PIPELINES

_INDENT = " " * 8


def main(argv: Sequence[str] | None = None) -> None:
    """Print the passes for a target, in order, with their phases and the reasons for both."""
    parser = argparse.ArgumentParser(prog="python -m graphgrad.lower", description=main.__doc__)
    parser.add_argument("--target", choices=TARGETS, default=TARGETS[0], help="the kind of target")
    parser.add_argument("--json", action="store_true", help="one JSON array, an object a pass")
    arguments = parser.parse_args(argv)
    rows = list(_rows(PIPELINES[arguments.target]))
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        print("\n".join(line for text in _lines(rows) for line in text.splitlines()))


def _rows(pipeline: Pipeline) -> Iterator[dict[str, Any]]:
    """Yield what each pass declares; passes that a pass runs itself come directly behind it."""
    phase = pipeline.start
    for step in pipeline.steps:
        yield _row(step, phase, f"{step.number}")
        inner = [row for inner_pipeline in step.declared.runs for row in _rows(inner_pipeline)]
        for number, row in enumerate(inner, 1):
            yield {**row, "number": f"{step.number}.{number}"}
        phase = step.declared.to or phase


def _row(step: Step, phase: Phase, number: str) -> dict[str, Any]:
    """What one pass declares, under the names that ``--json`` prints."""
    declared = step.declared
    return {
        "number": number,
        "phase": phase.name,
        "leads_to": declared.to.name if declared.to else None,
        "name": declared.name,
        "module": declared.module,
        "over": declared.over,
        "targets": declared.targets,
        "if": step.condition,
        "takes": [parameter.name for parameter in declared.takes],
        "provides": declared.provides,
        "requires": dict(declared.requires),
        "after": dict(declared.after),
        "before": dict(declared.before),
        "because": declared.because,
        "summary": declared.summary,
    }


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table: a heading for each phase, a few lines for each pass."""
    width = max(len(row["name"]) for row in rows)
    phase = None
    for row in rows:
        if row["phase"] != phase:
            phase = row["phase"]
            yield f"{phase}: {Phase[phase].value}"
        module = row["module"].removeprefix("graphgrad.")
        notes = [
            f"if {row['if']}" if row["if"] else "",
            "each kernel" if row["over"] == "kernel" else "",
            f"{row['targets'][0]} only" if len(row["targets"]) == 1 else "",
        ]
        noted = ", ".join(filter(None, notes))
        yield f"  {row['number']:>4}  {row['name']:{width}}  {module}{noted and f' ({noted})'}"
        yield f"{_INDENT}{row['summary']}"
        for relation in ("requires", "after", "before"):
            for name, reason in row[relation].items():
                yield f"{_INDENT}{relation} {name}: {reason}"
        if row["because"]:
            yield f"{_INDENT}because {row['because']}"
        if row["provides"]:
            yield f"{_INDENT}provides {row['provides']}"


if __name__ == "__main__":
    main()
