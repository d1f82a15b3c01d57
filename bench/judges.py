"""Judging many cases in processes of their own, so that one that dies is seen and costs itself."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from machine import facts, versions
from pool import serve
from table import table

WRONG = "wrong"

_SECONDS = 300  # a case that takes longer has hung


@dataclass(frozen=True)
class Verdict:
    """What came of one case.

    Attributes
    ----------
    name, operator : str
    status : str
        One of those that the bench defines; `WRONG` is one of them.
    reason : str
    """

    name: str
    operator: str
    status: str
    reason: str = ""


Judge = Callable[[str], Verdict]


def add_arguments(parser: argparse.ArgumentParser, statuses: Sequence[str]) -> None:
    """Add what every bench of judged cases takes."""
    parser.add_argument("--match", default="", help="only cases whose name matches")
    parser.add_argument("--jobs", type=int, default=2, help="processes; default: %(default)s")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--show", choices=[*statuses, "all"], default=WRONG, help="list these; default: wrong"
    )


def tell(
    verdicts: Sequence[Verdict], statuses: Sequence[str], arguments: argparse.Namespace, kind: str
) -> int:
    """Print the verdicts, as a table or under the name `kind` in JSON; return 1 if one is wrong."""
    if arguments.json:
        found = {
            "counts": counts(verdicts, statuses),
            kind: [asdict(verdict) for verdict in verdicts],
            "machine": facts(),
            "versions": versions(),
        }
        print(json.dumps(found))
    else:
        print(report(verdicts, statuses, arguments.show))
    return int(any(verdict.status == WRONG for verdict in verdicts))


def judge_all(names: Sequence[str], judge: Judge, jobs: int) -> list[Verdict]:
    """Return the verdict on each case, by name; a process that dies or hangs is wrong."""
    verdicts = []
    for served in serve(names, partial(_verdict, judge=judge), jobs, _SECONDS):
        verdict = served.value or Verdict(served.case, "", WRONG, f"process: {served.reason}")
        verdicts.append(verdict)
        if sys.stderr.isatty():
            print(f"\r{len(verdicts)}/{len(names)} {verdict.name:60.60}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r" + " " * 80 + "\r", end="", file=sys.stderr)
    return sorted(verdicts, key=lambda verdict: verdict.name)


def first_line(error: Exception, index: int = 0) -> str:
    """Return a line of an error's text, the last one if there are fewer."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[min(index, len(lines) - 1)][:200] if lines else type(error).__name__


def counts(verdicts: Sequence[Verdict], statuses: Sequence[str]) -> dict[str, int]:
    """Return how many verdicts have each status."""
    found = Counter(verdict.status for verdict in verdicts)
    return {status: found[status] for status in statuses}


def report(verdicts: Sequence[Verdict], statuses: Sequence[str], show: str) -> str:
    """Return a table by operator, and the verdicts that have the status `show`, or all."""
    operators: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        operators.setdefault(verdict.operator, Counter())[verdict.status] += 1
    rows = [[op, *(str(c[s] or "") for s in statuses)] for op, c in sorted(operators.items())]
    total = ["all", *map(str, counts(verdicts, statuses).values())]
    shown = [v for v in verdicts if show in ("all", v.status)]
    lines = [f"{v.status:9} {v.name}: {v.reason}" for v in shown]
    return "\n".join([table(["operator", *statuses], [*rows, total]), *lines])


def _verdict(name: str, judge: Judge) -> Verdict:
    """The verdict on a case; what the judge itself raises is wrong."""
    try:
        return judge(name)
    except Exception as error:
        return Verdict(name, "", WRONG, f"{type(error).__name__}: {error}"[:300])
