"""The tests of the ONNX standard: how many differentiate, and rightly.

    python bench/onnx_nodes.py [--set NAME] [--match REGEX] [--jobs N] [--json] [--show STATUS]
    python bench/onnx_nodes.py --files [--float64] ...  # gradients as ONNX files instead

The sets are those of the installed onnx: "node" has tests of single operators, the others of small
models. Every test is imported; its outputs are compared with those that the standard gives, and its
gradients in float64 with finite differences. Each comes to one of four ends:

supported  outputs and gradients agree
refused    there is nothing to differentiate: no float path, a derivative that is zero everywhere,
           quantized or string types, a shape that depends on data
missing    the operator is not imported, not lowered, or has no gradient
wrong      outputs or gradients disagree, or the process died

With --files the gradient by all floats is written by `gradient_to_onnx`, in the dtypes of the test
or with --float64 promoted, and run in onnxruntime, or in onnx's reference where that refuses it.
Besides those above:

agree      what onnxruntime computes is what `value_and_grad` computes
reference  onnxruntime refuses the file; what onnx's reference computes agrees
unwritten  something in it is not written as ONNX
alone      neither of them runs it
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from functools import partial

import node_file
from judges import add_arguments, judge_all, tell
from node_case import NODES, SETS, STATUSES, cases, judge, names
from node_file import judge_file


def main() -> int:
    """Run the tests; return 1 if one is wrong."""
    arguments = _parser().parse_args()
    kind = arguments.set
    cases(kind)  # before the processes fork: collected once
    chosen = list(names(re.compile(arguments.match, re.IGNORECASE).search, kind))
    judge_one, statuses = partial(judge, kind=kind), STATUSES
    if arguments.files:
        judge_one = partial(judge_file, kind=kind, wide=arguments.float64)
        statuses = node_file.STATUSES
    verdicts = judge_all(chosen, judge_one, arguments.jobs)
    return tell(verdicts, statuses, arguments, "tests")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, sorted({*STATUSES, *node_file.STATUSES}))
    parser.add_argument("--files", action="store_true", help="judge gradients as ONNX files")
    parser.add_argument("--float64", action="store_true", help="with --files: in float64")
    parser.add_argument("--set", choices=SETS, default=NODES, help="default: %(default)s")
    return parser


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the tests' own arithmetic with infinities
    sys.exit(main())
