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
import re
import sys
import warnings

from judges import add_arguments, judge_all, tell
from node_case import STATUSES, cases, judge, names


def main() -> int:
    """Run the tests; return 1 if one is wrong."""
    arguments = _parser().parse_args()
    chosen = list(names(re.compile(arguments.match, re.IGNORECASE).search))
    return tell(judge_all(chosen, judge, arguments.jobs), STATUSES, arguments, "tests")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, STATUSES)
    return parser


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the tests' own arithmetic with infinities
    cases()  # before the processes fork: collected once
    sys.exit(main())
