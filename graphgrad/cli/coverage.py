"""The command ``graphgrad coverage``."""

import argparse
import json

from ..frontend.onnx_import import from_onnx
from ..report.coverage import coverage


def run(arguments: argparse.Namespace) -> int:
    """Show which ops of a model have which gradient; return 1 if some have none."""
    found = coverage(from_onnx(arguments.model), rules=arguments.rules)
    if arguments.json:
        print(json.dumps({"model": arguments.model, "rules": arguments.rules, **found.facts()}))
    else:
        print(found)
    return int(not found.complete)
