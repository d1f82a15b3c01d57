"""The command ``graphgrad grad``."""

import argparse
import json
import sys
from pathlib import Path

import graphgrad as gg

from .errors import ArgumentError
from .frontend.mode import specialise


def run(arguments: argparse.Namespace) -> int:
    """Differentiate a model, write the result as text and return the exit code."""
    model = gg.from_onnx(arguments.model)
    trainable = [name for name in model.params if name not in model.frozen]
    wrt = arguments.wrt or trainable
    module = gg.vjp(specialise(model, training=None), wrt=wrt)
    text = _header(arguments.model, model, wrt) + module.script() + "\n"
    if arguments.out is not None:
        _write(Path(arguments.out), text)
    if arguments.json:
        summary = {
            "model": arguments.model,
            "inputs": model.inputs,
            "outputs": model.outputs,
            "gradients": list(wrt),
            "out": arguments.out,
        }
        print(json.dumps(summary if arguments.out else summary | {"module": text}))
    elif arguments.out is None:
        sys.stdout.write(text)
    return 0


def _header(path: str, model: gg.Model, wrt: list[str]) -> str:
    lines = [
        f"{path}, differentiated by graphgrad {gg.__version__}",
        f"inputs: {', '.join(model.inputs)}",
        f"outputs: {', '.join(model.outputs)}",
        f"weights: {len(model.params)}, {sum(p.size for p in model.params.values()):,} numbers",
        f"running statistics: {len(model.state)}",
        f"gradients of {len(wrt)} values: {', '.join(wrt)}",
        *model.notes,
    ]
    return "".join(f"# {line}\n" for line in lines)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror}") from error
