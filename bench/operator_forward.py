"""The forward pass of every ONNX operator, compared with onnxruntime over generated cases.

    python bench/operator_forward.py [--match REGEX] [--count N] [--seed N] [--jobs N] [--json]
        [--show STATUS] [--journal FILE]

Cases are drawn from the schemas of the installed onnx: attributes, opsets, ranks, dtypes, inputs
that are left out or constant. With a journal, operators that are in it are not judged again. Each
case comes to one of five ends:

agrees     outputs are those of onnxruntime, or of onnx.reference where onnxruntime has no kernel
refused    graphgrad does not import the case
no oracle  onnxruntime and onnx.reference refuse it
excluded   they are not to be followed there; the reason is in the code that excludes the case
wrong      outputs disagree, or the process died
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from functools import partial
from pathlib import Path

from judges import WRONG, Verdict, add_arguments, judge_all, tell

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.frontend.operator_cases import FAMILIES, cases
from tests.frontend.operator_cases.forward import STATUSES, judge


def main() -> int:
    """Judge the cases; return 1 if one is wrong."""
    arguments = _parser().parse_args()
    keys = {_name(*key): key for family in FAMILIES.values() for key in family}
    chosen = [name for name in keys if re.search(arguments.match, name, re.IGNORECASE)]
    journal = _Journal(arguments.journal, arguments.seed, arguments.count)
    verdicts = {name: journal.verdicts(name) for name in chosen}
    waiting = [name for name in chosen if verdicts[name] is None]
    judge_operator = partial(
        _judged, keys=keys, seed=arguments.seed, count=arguments.count, journal=journal
    )
    for verdict in judge_all(waiting, judge_operator, arguments.jobs):
        # What the process wrote; where it died, that it did.
        found = [Verdict(**item) for item in json.loads(verdict.reason)] if verdict.operator else []
        verdicts[verdict.name] = found or [
            Verdict(verdict.name, verdict.name, WRONG, verdict.reason)
        ]
    found = [verdict for name in chosen for verdict in verdicts[name] or ()]
    return tell(found, STATUSES, arguments, "cases")


class _Journal:
    """The verdicts of operators that were judged, one line each; nothing without a file."""

    def __init__(self, path: str | None, seed: int, count: int):
        self._path = Path(path) if path else None
        self._key = [seed, count]
        lines = self._path.read_text().splitlines() if self._path and self._path.exists() else []
        entries = [json.loads(line) for line in lines]
        self._done = {e["name"]: e["cases"] for e in entries if e["key"] == self._key}

    def verdicts(self, name: str) -> list[Verdict] | None:
        """The verdicts on an operator's cases; None where it was not judged."""
        done = self._done.get(name)
        return None if done is None else [Verdict(**item) for item in done]

    def add(self, name: str, found: list[dict[str, str]]) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"key": self._key, "name": name, "cases": found}) + "\n")


def _judged(
    name: str, keys: dict[str, tuple[str, str]], seed: int, count: int, journal: _Journal
) -> Verdict:
    """The verdicts on an operator's cases, as the JSON text of one."""
    warnings.simplefilter("ignore")  # the references' own arithmetic with infinities
    drawn = list(cases(seed, count, *keys[name]))
    found = [
        {"name": case.name, "operator": name, "status": judgment.status, "reason": judgment.reason}
        for case, judgment in zip(drawn, judge(drawn), strict=True)
    ]
    journal.add(name, found)
    return Verdict(name, name, "", json.dumps(found))


def _name(domain: str, operator: str) -> str:
    return f"{domain}.{operator}" if domain else operator


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, STATUSES)
    parser.add_argument("--count", type=int, default=4, help="cases a version; default: 4")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--journal", metavar="FILE", help="go on behind what it holds")
    return parser


if __name__ == "__main__":
    sys.exit(main())
