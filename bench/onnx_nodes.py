"""The node tests of the ONNX standard: how many differentiate, and rightly.

    python bench/onnx_nodes.py [--match REGEX] [--jobs N] [--json] [--show STATUS]

Every test of the installed onnx is imported; its outputs are compared with those that the standard
gives, and its gradients in float64 with finite differences. Each comes to one of four ends:

supported  outputs and gradients agree
refused    there is nothing to differentiate: no float path, a derivative that is zero everywhere,
           quantised or string types
missing    the operator is not imported, not lowered, or has no gradient
wrong      outputs or gradients disagree, or the process died
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from typing import Any

from machine import facts, versions
from node_case import STATUSES, WRONG, Verdict, cases, judge, names
from table import table

_SECONDS = 300  # a test that takes longer has hung


def main() -> int:
    """Run the tests; return 1 if one is wrong."""
    arguments = _parser().parse_args()
    chosen = list(names(re.compile(arguments.match, re.IGNORECASE).search))
    verdicts = []
    for verdict in _verdicts(chosen, arguments.jobs):
        verdicts.append(verdict)
        if sys.stderr.isatty():
            print(f"\r{len(verdicts)}/{len(chosen)} {verdict.name:60.60}", end="", file=sys.stderr)
    verdicts.sort(key=lambda verdict: verdict.name)
    if arguments.json:
        print(json.dumps(_report(verdicts)))
    else:
        _print(verdicts, arguments.show)
    return int(any(verdict.status == WRONG for verdict in verdicts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--match", default="", help="only tests whose name or operator matches")
    parser.add_argument("--jobs", type=int, default=2, help="processes; default: %(default)s")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--show", choices=[*STATUSES, "all"], default=WRONG, help="list these; default: wrong"
    )
    return parser


def _verdicts(chosen: list[str], jobs: int) -> Iterator[Verdict]:
    """Judge tests in other processes, so that one that dies is seen and costs only itself."""
    waiting = list(reversed(chosen))
    workers: dict[Connection, tuple[Any, str]] = {}
    while waiting or workers:
        while waiting and len(workers) < jobs:
            _start(workers)
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
            verdict = _received(connection, name)
            if verdict is None:
                process.kill()
                yield Verdict(name, "", WRONG, "the process died or hung")
            else:
                workers[connection] = (process, "")
                yield verdict


def _start(workers: dict[Connection, tuple[Any, str]]) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    workers[ours] = (process, "")


def _work(connection: Connection) -> None:
    while True:
        name = connection.recv()
        try:
            verdict = judge(name)
        except Exception as error:
            verdict = Verdict(name, "", WRONG, f"{type(error).__name__}: {error}"[:300])
        connection.send(verdict)


def _received(connection: Connection, name: str) -> Verdict | None:
    try:
        return connection.recv() if connection.poll() else None
    except EOFError:
        return None


def _report(verdicts: list[Verdict]) -> dict[str, Any]:
    return {
        "counts": Counter(verdict.status for verdict in verdicts),
        "tests": [asdict(verdict) for verdict in verdicts],
        "machine": facts(),
        "versions": versions(),
    }


def _print(verdicts: list[Verdict], show: str) -> None:
    counts = Counter(verdict.status for verdict in verdicts)
    operators: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        operators.setdefault(verdict.operator, Counter())[verdict.status] += 1
    rows = [[op, *(str(c[s] or "") for s in STATUSES)] for op, c in sorted(operators.items())]
    total = ["all", *(str(counts[status]) for status in STATUSES)]
    print(table(["operator", *STATUSES], [*rows, total]))
    for verdict in verdicts:
        if show in ("all", verdict.status):
            print(f"{verdict.status:9} {verdict.name}: {verdict.reason}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the tests' own arithmetic with infinities
    cases()  # before the fork: collected once
    sys.exit(main())
