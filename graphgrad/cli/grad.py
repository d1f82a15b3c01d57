"""The command ``graphgrad grad``."""

import argparse
import json

from .. import __version__
from ..autodiff.vjp import vjp
from ..files import write_file
from ..frontend.mode import specialize
from ..frontend.model import Model
from ..frontend.onnx_import import from_onnx
from ..precision.transform import MixedPrecision
from ..report.coverage import Coverage, coverage
from .job import chosen_precision


def run(arguments: argparse.Namespace) -> int:
    """Differentiate a model, write the result as text and return the exit code."""
    model = from_onnx(arguments.model, constants=arguments.constants or ())
    wrt = arguments.wrt or model.trainable()
    precision = chosen_precision(arguments.precision, arguments.full_precision)
    mixed = MixedPrecision(precision, weights=model.weights)(specialize(model, training=None))
    module = vjp(mixed, wrt=wrt, rules=arguments.rules)
    result = coverage(model, wrt=wrt, rules=arguments.rules, precision=precision)
    text = _header(arguments.model, model, wrt, result) + module.script() + "\n"
    if arguments.out is not None:
        write_file(arguments.out, text.encode())
    if arguments.json:
        summary = {
            "model": arguments.model,
            "inputs": model.inputs,
            "outputs": model.outputs,
            "gradients": list(wrt),
            "rules": arguments.rules,
            "provenance": result.facts()["rows"],
            "out": arguments.out,
        }
        print(json.dumps(summary if arguments.out else summary | {"module": text}))
    elif arguments.out is None:
        print(text, end="")
    return 0


def _header(path: str, model: Model, wrt: list[str], result: Coverage) -> str:
    """Comments for the top of the program: the model, the gradients in order, their rules."""
    inputs = [f"{name} {shape} {dtype}" for name, (shape, dtype) in model.input_types().items()]
    numbers = sum(array.size for array in model.params.values())
    lines = [
        f"{path}, differentiated by graphgrad {__version__}",
        f"inputs: {', '.join(inputs)}",
        f"outputs: {', '.join(model.outputs)}",
        f"{len(model.params)} weights, {numbers:,} numbers; {len(model.state)} running statistics",
        *model.notes,
        f"gradients of {len(wrt)} values, in this order:",
        *(f"  {name} {model.params[name].shape if name in model.params else ''}" for name in wrt),
        "by rules that are graphgrad's (hand), the user's, or derived:",
        *(f"  {line}" for line in result.table().splitlines()),
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)
