"""What the ledger says of a defect of TVM, and where its entries are."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["wrong result", "crash", "refusal", "cost", "missing API"]
"""How a defect shows.

``crash`` ends the process, or stops it for ever; ``refusal`` is an error where there is nothing to
refuse, or one that names no cause; ``cost`` is time or memory beyond any need.
"""

_ENTRIES = Path(__file__).parent / "defects"


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A defect of TVM, worded as a report.

    Attributes
    ----------
    title : str
        The part of TVM in brackets, and what is wrong.
    kind : Kind
    happens : str
        What TVM does with the program.
    expected : str
        What it should do.
    worked_around_in : tuple of str
        The modules of graphgrad that work around the defect, by their dotted names.
    crashes : bool
        Whether the program ends the process, always or at times.
    versions : tuple of str
        Of TVM, in which the defect was seen.
    report : str or None
        Where it was reported; None if no report is known.
    """

    title: str
    kind: Kind
    happens: str
    expected: str
    worked_around_in: tuple[str, ...]
    crashes: bool = False
    versions: tuple[str, ...] = ("0.27.0.post1",)
    report: str | None = None


def names() -> list[str]:
    """The names of all entries, sorted."""
    return sorted(path.stem for path in _ENTRIES.glob("[!_]*.py"))


def defect(name: str) -> Defect:
    """The defect of an entry; its module is imported, its program not run."""
    entry: Defect = importlib.import_module(f"{__package__}.defects.{name}").DEFECT
    return entry


def program(name: str) -> str:
    """The source of an entry's program, which runs with TVM alone."""
    source = (_ENTRIES / f"{name}.py").read_text(encoding="utf-8")
    alone, _, _ = source.partition("\n\nDEFECT = ")
    return alone.replace("\nfrom ..ledger import Defect\n", "", 1)
