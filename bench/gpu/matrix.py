"""The compile matrix: every model family, compiled for GPUs on a machine without one.

    python bench/gpu/matrix.py [--match REGEX] [--form training inference] [--dtype float32 …]
                               [--arch sm_80 sm_90] [--batch N] [--jobs N]
                               [--json FILE] [--resume] [--page]

Needs nvcc, and torch for the families that its exporter writes. For each family, form, dtype and
architecture it tells how many kernels the program has and which rule scheduled how many of them,
how long each part of compiling took, how large the machine code is, and what the hungriest kernel
takes. What the virtual machine calls must be in the machine code: a cell with a function on the
host has failed. A cell that fails is listed with the reason, and the others go on.

`--json` writes what is known after every cell; with `--resume` the cells that compiled are kept,
so that the matrix can be made in pieces. `--page` puts the cells into docs/gpu.md. Families whose
gradients are derived have tables of their own there; tables of which no family is chosen stay as
they are. The whole takes about twenty minutes on two cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import paths  # noqa: F401 (where `machine` and `table` are found)
from cell import COMPILED, FAILED, FORMS, PARTS, Cell, compile_cell
from families import BATCH, DTYPES, Family, derived_families, families
from machine import facts, versions
from matrix_page import write_page
from table import table

ARCHS = ("sm_80", "sm_90")

Key = tuple[str, str, str, str]


def make(keys: Sequence[Key], batch: int, jobs: int) -> Iterator[Cell]:
    """Yield a cell for each family, form, dtype and architecture, made in other processes."""
    idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()

    def one(key: Key) -> Cell:
        pool = idle.get()
        try:
            return pool.submit(_make_one, key, batch).result()
        except BrokenProcessPool:
            pool = _pool()
            return Cell(*key, status=FAILED, reason="the process died")
        finally:
            idle.put(pool)

    for _ in range(jobs):
        idle.put(_pool())
    with ThreadPoolExecutor(jobs) as threads:
        yield from threads.map(one, keys)
    for _ in range(jobs):
        idle.get().shutdown()


def _pool() -> ProcessPoolExecutor:
    # Of one process each: a process that dies takes all calls of its pool with it.
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def _make_one(key: Key, batch: int) -> Cell:
    # Only the parts of a binary that is not compressed can be told.
    os.environ["NVCC_APPEND_FLAGS"] = "--no-compress"
    family, form, dtype, arch = key
    return compile_cell(_all_families()[family], form, dtype, arch, batch)


def _all_families() -> dict[str, Family]:
    return {**families(), **derived_families()}


def text(cells: Sequence[Cell]) -> str:
    """Return the cells as a table, what failed below it."""
    header = [
        "program", "dtype", "arch", "calls", "kernels", "rules", "functions", "host",
        *(f"{part} s" for part in PARTS), "code KB", "registers", "stack", "shared",
    ]  # fmt: skip
    rows = [_row(cell) for cell in cells]
    failed = [
        f"{cell.family} {cell.form} {cell.dtype} {cell.arch}: {cell.reason}"
        for cell in cells
        if cell.status == FAILED
    ]
    counts = Counter(cell.status for cell in cells)
    total = f"{counts[COMPILED]} of {len(cells)} compiled, {_on_host(cells)} kernels on the host"
    return "\n".join([table(header, rows), *failed, total])


def _on_host(cells: Sequence[Cell]) -> int:
    return sum(len(cell.host) for cell in cells)


def _row(cell: Cell) -> list[str]:
    names = [f"{cell.family} {cell.form}", cell.dtype, cell.arch]
    if not cell.functions:
        return [*names, cell.status, *[""] * 12]
    seconds = [f"{cell.seconds[part]:.1f}" for part in PARTS]
    rules = " ".join(f"{rule} {count}" for rule, count in sorted(cell.rules.items()))
    figures = [cell.registers, cell.stack, cell.shared]
    counts = [str(cell.calls), str(cell.kernels), rules, str(cell.functions), str(len(cell.host))]
    return [*names, *counts, *seconds, f"{cell.code_bytes / 1e3:.0f}", *map(str, figures)]


def _write(path: Path, cells: Sequence[Cell]) -> None:
    found: dict[str, Any] = {
        "cells": [asdict(cell) for cell in cells],
        "machine": facts(),
        "versions": versions(),
    }
    path.write_text(json.dumps(found, indent=1), encoding="utf-8")


def _known(path: Path) -> dict[Key, Cell]:
    """Return the cells of an earlier run that compiled."""
    if not path.is_file():
        return {}
    cells = [Cell(**cell) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    return {_key(cell): cell for cell in cells if cell.status == COMPILED}


def _key(cell: Cell) -> Key:
    return cell.family, cell.form, cell.dtype, cell.arch


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--match", default="", help="only families whose name matches")
    parser.add_argument("--form", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=DTYPES[:3])
    parser.add_argument("--arch", nargs="+", default=ARCHS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--jobs", type=int, default=2, help="processes; default: %(default)s")
    parser.add_argument("--json", type=Path, help="a file, written after every cell")
    parser.add_argument("--resume", action="store_true", help="keep what compiled before")
    parser.add_argument("--page", action="store_true", help="put the tables into docs/gpu.md")
    arguments = parser.parse_args()
    if arguments.resume and not arguments.json:
        parser.error("--resume needs the file of --json")
    return arguments


def main() -> int:
    """Make the matrix; return 1 if a cell failed."""
    arguments = _arguments()
    names = [name for name in _all_families() if re.search(arguments.match, name)]
    keys = list(itertools.product(names, arguments.form, arguments.dtype, arguments.arch))
    known = _known(arguments.json) if arguments.resume else {}
    missing = [key for key in keys if key not in known]
    for index, cell in enumerate(make(missing, arguments.batch, arguments.jobs), start=1):
        known[_key(cell)] = cell
        print(f"{index}/{len(missing)} {' '.join(_key(cell))}: {cell.status}", file=sys.stderr)
        if arguments.json:
            _write(arguments.json, list(known.values()))
    cells = [known[key] for key in keys]
    print(text(cells))
    if arguments.page:
        write_page(cells)
    return int(any(cell.status == FAILED for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
