"""Tables as text, with aligned columns."""

from collections.abc import Collection, Sequence


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] | None = None
) -> str:
    """A table as text: a header, a rule and rows, in aligned columns.

    Parameters
    ----------
    header : sequence of str
    rows : sequence of sequence of str
    right : collection of int, optional
        The columns that are aligned to the right; by default all but the first.
    """
    right = range(1, len(header)) if right is None else right
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]
    rule = ["-" * width for width in widths]
    return "\n".join(_line(line, widths, right) for line in [header, rule, *rows])


def _line(cells: Sequence[str], widths: Sequence[int], right: Collection[int]) -> str:
    """One line of a table, without spaces at its end."""
    padded = [
        cell.rjust(width) if column in right else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()
