"""The figures of `kernels.py` as tables in Markdown, as docs/performance.md has them.

python bench/kernels.py --json > kernels.json
python bench/kernel_markdown.py kernels.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernel_entrants import DERIVED, DIRECT, OURS, REFERENCE
from kernel_report import ratio

_PARTS = ("forward", "data", "weight")


def main() -> None:
    print(markdown(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))


def markdown(result: dict[str, Any]) -> str:
    """Return a table for each group; a cell is a speed in GFLOP/s and its ratios."""
    groups = dict.fromkeys(group for entry in result["cases"] for group in entry["groups"])
    tables = ["\n".join([f"### {group}", "", *_table(group, result["cases"])]) for group in groups]
    return "\n\n".join(tables)


def _table(group: str, cases: list[dict[str, Any]]) -> Iterator[str]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for entry in cases:
        if group in entry["groups"]:
            found.setdefault(entry["name"], {})[entry["part"]] = entry
    parts = [part for part in _PARTS if any(part in by_part for by_part in found.values())]
    yield _line(["", *parts])
    yield _line(["---", *["---"] * len(parts)])
    for name, by_part in found.items():
        cells = [_cell(by_part[part], group) if part in by_part else "" for part in parts]
        yield _line([name, *cells])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(entry: dict[str, Any], group: str) -> str:
    name, other = (DERIVED, OURS) if group == "derived" else (OURS, REFERENCE)
    figures = entry["contenders"].get(name, {})
    if "gflops" not in figures:
        return "failed"
    compared = [f"{value:.2f}" for value in [ratio(entry, name, other)] if value is not None]
    direct = ratio(entry, OURS, DIRECT)
    if direct is not None:
        compared.append(f"{direct:.2f} of direct")
    return f"{figures['gflops']:.0f} ({', '.join(compared)})"


if __name__ == "__main__":
    main()
