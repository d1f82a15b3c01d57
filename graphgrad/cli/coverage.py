"""The command ``graphgrad coverage``."""

import argparse
import json

from ..frontend.onnx_import import from_onnx
from ..report.coverage import coverage
from ..report.table import show
from .job import chosen_precision


def run(arguments: argparse.Namespace) -> int:
    """Show which ops of a model have which gradient; return 1 if some have none."""
    result = coverage(
        from_onnx(arguments.model, constants=arguments.constants or ()),
        rules=arguments.rules,
        precision=chosen_precision(arguments.precision, arguments.full_precision),
    )
    if arguments.json:
        print(json.dumps({"model": arguments.model, "rules": arguments.rules, **result.facts()}))
    else:
        show(result)
    return int(not result.complete)
