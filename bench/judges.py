"""Judging many cases in processes of their own, so that one that dies is seen and costs itself."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from machine import facts, versions
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
    for verdict in _verdicts(names, judge, jobs):
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


def _verdicts(names: Sequence[str], judge: Judge, jobs: int) -> Iterator[Verdict]:
    waiting = list(reversed(names))
    workers: dict[Connection, tuple[Any, str]] = {}
    while waiting or workers:
        while waiting and len(workers) < jobs:
            _start(workers, judge)
        for connection in [c for c, (_, name) in workers.items() if not name]:
            if waiting:
                name = waiting.pop()
                connection.send(name)
                workers[connection] = (workers[connection][0], name)
            else:
                workers.pop(connection)[0].kill()
        busy = [c for c, (_, name) in workers.items() if name]
        for connection in (wait(busy, timeout=_SECONDS) or busy[:1]) if busy else ():
            process, name = workers.pop(connection)
            verdict = _received(connection)
            if verdict is None:
                process.kill()
                yield Verdict(name, "", WRONG, "the process died or hung")
            else:
                workers[connection] = (process, "")
                yield verdict


def _start(workers: dict[Connection, tuple[Any, str]], judge: Judge) -> None:
    ours, theirs = multiprocessing.Pipe()
    # Forked: what was collected before need not be collected again.
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_work, args=(theirs, judge), daemon=True)
    process.start()
    theirs.close()
    workers[ours] = (process, "")


def _work(connection: Connection, judge: Judge) -> None:
    while True:
        name = connection.recv()
        try:
            verdict = judge(name)
        except Exception as error:
            verdict = Verdict(name, "", WRONG, f"{type(error).__name__}: {error}"[:300])
        connection.send(verdict)


def _received(connection: Connection) -> Verdict | None:
    try:
        return connection.recv() if connection.poll() else None
    except EOFError:
        return None
