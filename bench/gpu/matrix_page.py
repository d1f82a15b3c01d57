"""The compile matrix as tables in docs/gpu.md, each part between two marks."""

from __future__ import annotations

import datetime
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import paths
from cell import COMPILED, PARTS, Cell
from families import derived_families
from machine import versions

from graphgrad.lower.cuda.compiler import find_nvcc

PAGE = paths.ROOT / "docs" / "gpu.md"
_MARKS = "<!-- compile matrix: begin -->", "<!-- compile matrix: end -->"
_DERIVED_MARKS = "<!-- derived kernels: begin -->", "<!-- derived kernels: end -->"
_DETAILED = ("training", "float32", "sm_90")
_DEPTHS = ("resnet18", "resnet34", "resnet50")
_PACKAGES = ("graphgrad", "apache-tvm", "torch")


def write_page(cells: Sequence[Cell], page: Path = PAGE) -> None:
    """Replace what stands between the marks of each part of the page that some cells are of.

    Raises
    ------
    ValueError
        The page has no marks.
    """
    derived = [cell for cell in cells if cell.family in derived_families()]
    others = [cell for cell in cells if cell.family not in derived_families()]
    text = page.read_text(encoding="utf-8")
    if others:
        parts = [_facts(others), _all(others), _details(others), _growth(others)]
        text = _replaced(text, _MARKS, parts)
    if derived:
        text = _replaced(text, _DERIVED_MARKS, [_facts(derived), _all(derived), _details(derived)])
    page.write_text(text, encoding="utf-8")


def _replaced(text: str, marks: tuple[str, str], parts: Sequence[str]) -> str:
    begin, end = marks
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the page has no lines {begin} and {end}")
    return pattern.sub(lambda _: "\n\n".join([begin, *parts, end]), text)


def _facts(cells: Sequence[Cell]) -> str:
    compiled = sum(cell.status == COMPILED for cell in cells)
    took: Counter[str] = Counter()
    for cell in cells:
        took.update(cell.rules)
    rules = ", ".join(f"`{rule}` {count:,}" for rule, count in took.most_common())
    used = ", ".join(f"{name} {version}" for name, version in versions(_PACKAGES).items())
    return (
        f"{datetime.date.today()}, {used}, nvcc {_nvcc_version()}: **{compiled} of {len(cells)} "
        f"programs compile; {sum(len(cell.host) for cell in cells)} kernels on the host.** Of "
        f"{sum(took.values()):,} kernels these rules took: {rules}."
    )


def _nvcc_version() -> str:
    nvcc = find_nvcc()
    if nvcc is None:
        return "(none)"
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"V([\d.]+)", said)[0]


def _all(cells: Sequence[Cell]) -> str:
    """Return kernels and processor time of every program."""
    columns = list(dict.fromkeys((cell.dtype, cell.arch) for cell in cells))
    rows: dict[str, dict[tuple[str, str], str]] = {}
    for cell in cells:
        row = rows.setdefault(f"{cell.family}, {cell.form}", {})
        row[cell.dtype, cell.arch] = _entry(cell)
    header = ["kernels · seconds", *(f"{dtype} {arch}" for dtype, arch in columns)]
    lines = [
        [name, *(row.get(column, "not run") for column in columns)] for name, row in rows.items()
    ]
    return _table(header, lines)


def _entry(cell: Cell) -> str:
    if cell.status != COMPILED:
        return "**fails**"
    return f"{cell.kernels} · {sum(cell.seconds.values()):.1f}"


def _details(cells: Sequence[Cell]) -> str:
    header = [
        " ".join(_DETAILED), "calls", "kernels by rule", "functions",
        *(f"{part} s" for part in PARTS), "code KB", "registers", "stack B", "shared B",
    ]  # fmt: skip
    return _table(header, [_row(cell) for cell in _detailed(cells)])


def _detailed(cells: Sequence[Cell]) -> list[Cell]:
    chosen = [cell for cell in cells if (cell.form, cell.dtype, cell.arch) == _DETAILED]
    return [cell for cell in chosen if cell.status == COMPILED]


def _growth(cells: Sequence[Cell]) -> str:
    """Return how compile time grows with depth."""
    header = ["depth", "calls", "kernels", "seconds", "ms per call", "ms per kernel"]
    rows = []
    for cell in _detailed(cells):
        if cell.family in _DEPTHS:
            seconds = sum(cell.seconds.values())
            rates = [f"{1e3 * seconds / count:.0f}" for count in (cell.calls, cell.kernels)]
            counts = [str(cell.calls), str(cell.kernels)]
            rows.append([cell.family, *counts, f"{seconds:.1f}", *rates])
    return _table(header, rows)


def _row(cell: Cell) -> list[str]:
    rules = ", ".join(f"{rule} {count}" for rule, count in sorted(cell.rules.items()))
    seconds = [f"{cell.seconds[part]:.1f}" for part in PARTS]
    figures = [cell.registers, cell.stack, cell.shared]
    size = f"{cell.code_bytes / 1e3:.0f}"
    return [
        cell.family,
        str(cell.calls),
        rules,
        str(cell.functions),
        *seconds,
        size,
        *map(str, figures),
    ]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
