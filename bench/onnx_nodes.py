"""The tests of the ONNX standard: how many differentiate, and rightly.

    python bench/onnx_nodes.py [--set NAME] [--match REGEX] [--jobs N] [--json] [--show STATUS]

The sets are those of the installed onnx: "node" has tests of single operators, the others of small
models. Every test is imported; its outputs are compared with those that the standard gives, and its
gradients in float64 with finite differences. Each comes to one of four ends:

supported  outputs and gradients agree
refused    there is nothing to differentiate: no float path, a derivative that is zero everywhere,
           quantized or string types, a shape that depends on data
missing    the operator is not imported, not lowered, or has no gradient
wrong      outputs or gradients disagree, or the process died
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from functools import partial

from judges import add_arguments, judge_all, tell
from node_case import NODES, SETS, STATUSES, cases, judge, names


def main() -> int:
    """Run the tests; return 1 if one is wrong."""
    arguments = _parser().parse_args()
    kind = arguments.set
    cases(kind)  # before the processes fork: collected once
    chosen = list(names(re.compile(arguments.match, re.IGNORECASE).search, kind))
    verdicts = judge_all(chosen, partial(judge, kind=kind), arguments.jobs)
    return tell(verdicts, STATUSES, arguments, "tests")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, STATUSES)
    parser.add_argument("--set", choices=SETS, default=NODES, help="default: %(default)s")
    return parser


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the tests' own arithmetic with infinities
    sys.exit(main())
