"""Tables and text: on a terminal in its width and in color, elsewhere plain. Drawn by rich."""

from __future__ import annotations

import io
import sys
from collections.abc import Collection, Sequence

from rich.box import Box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_RULE = Box("    \n    \n -  \n    \n    \n    \n    \n    \n", ascii=True)
"""A line of dashes below the header, and no other."""

_STYLES = {
    "missing": "bold red",
    "WRONG": "bold red",
    "DIFFERS": "bold red",
    "ok": "green",
    "user": "green",
    "derived": "yellow",
    "backward": "magenta",
    "forward": "blue",
}
"""Of cells that say one of these words."""

_NAMES_SHOWN = 3
_UNLIMITED = 100_000  # columns: text for files and programs is never cut or folded


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[RenderableType]],
    right: Collection[int] | None = None,
) -> Table:
    """A table: a header, a rule and rows, in aligned columns.

    Parameters
    ----------
    header : sequence of str
    rows : sequence of sequence of str
        Or of what rich draws, such as bars.
    right : collection of int, optional
        The columns that are aligned to the right; by default all but the first.
    """
    right = range(1, len(header)) if right is None else right
    drawn = Table(box=_RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, title in enumerate(header):
        is_right = column in right
        drawn.add_column(title, justify="right" if is_right else "left", no_wrap=is_right)
    for row in rows:
        drawn.add_row(*(Text(c, _STYLES.get(c, "")) if isinstance(c, str) else c for c in row))
    return drawn


def listed(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def plain(*parts: RenderableType) -> str:
    """Tables and text as plain text, without blanks at the ends of lines."""
    text = io.StringIO()
    console = Console(
        file=text, width=_UNLIMITED, color_system=None, markup=False, emoji=False, highlight=False
    )
    console.print(*parts, sep="\n")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def show(*parts: RenderableType) -> None:
    """Write tables and text to standard output."""
    if sys.stdout is not None and sys.stdout.isatty():
        Console(markup=False, emoji=False, highlight=False).print(*parts, sep="\n")
    else:
        print(plain(*parts))
