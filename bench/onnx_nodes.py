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
import re
import sys
import warnings
from dataclasses import asdict

from judges import WRONG, counts, judge_all, report
from machine import facts, versions
from node_case import STATUSES, cases, judge, names


def main() -> int:
    """Run the tests; return 1 if one is wrong."""
    arguments = _parser().parse_args()
    chosen = list(names(re.compile(arguments.match, re.IGNORECASE).search))
    verdicts = judge_all(chosen, judge, arguments.jobs)
    if arguments.json:
        found = {
            "counts": counts(verdicts, STATUSES),
            "tests": [asdict(verdict) for verdict in verdicts],
            "machine": facts(),
            "versions": versions(),
        }
        print(json.dumps(found))
    else:
        print(report(verdicts, STATUSES, arguments.show))
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


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the tests' own arithmetic with infinities
    cases()  # before the processes fork: collected once
    sys.exit(main())
