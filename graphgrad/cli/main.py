"""The command ``graphgrad``: the arguments of all commands, and the exit codes of errors."""

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence

from .. import __version__
from ..errors import GraphGradError
from ..ir.inline import RULES
from ..precision.choice import FULL, PRECISIONS
from ..report.stream import Stream, discard
from ..train.loss import LOSSES
from . import bench as cli_bench
from . import cache as cli_cache
from . import check as cli_check
from . import coverage as cli_coverage
from . import grad as cli_grad
from . import report as cli_report
from . import train as cli_train
from .job import Settings
from .optimizer import BUILT_IN, DEFAULTS, SCHEDULES
from .save_interval import DEFAULT as DEFAULT_INTERVAL
from .signals import exit_code

GOOD, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

EXIT_CODES = f"""\
exit codes:
  {GOOD}    good
  {FAILED}    the run failed (loss or gradients stayed non-finite), a gradient is wrong or missing,
       a value differs
  {BAD_INPUT}    bad usage or bad input, or output that cannot be written
  {INTERRUPTED}  stopped by Ctrl-C; by another signal n, 128 + n
"""

TRAIN = """\
Train an ONNX model with gradients that graphgrad derives. Without arguments: build a small residual
network as an ONNX file, import that file, and train it on 8x8 handwritten digits.

In the folder --out it writes trained.onnx (inference form), history.json (settings, loss of each
step, held-out measure of each epoch), the last two checkpoints (checkpoint.safetensors and
checkpoint.previous.safetensors) and, with matplotlib, loss.png. Files of an earlier run there are
replaced once there is something to save.
"""

TRAIN_EXAMPLES = """\
examples:
  graphgrad train                                     the digits, about a minute
  graphgrad train --compare-frozen                    and a twin whose convolutions do not train
  graphgrad train model.onnx --data data.npz          arrays x, y [, x_test, y_test]
  graphgrad train model.onnx --data d.npz --loss mse --lr 0.01 --steps 500 --batch 16
  graphgrad train model.onnx --data d.npz --optimizer adamw --clip-norm 1
  graphgrad train model.onnx --data d.npz --target cuda
  graphgrad train model.onnx --data d.npz --freeze 'layer1.*' --freeze conv1.weight
  graphgrad train --resume --out graphgrad-out        go on where a run ended, bit for bit

data: the first dimension of every array counts the examples. A model with several inputs takes one
array per input, named as the input. Labels y are integers; with --loss mse, y are real values; with
a loss that the model computes itself, there is no y.

Ctrl-C, SIGTERM and SIGHUP finish the step, save and say how to resume; a run that is killed leaves
what --save-every has saved. A resumed run keeps its model, data and settings, and goes on from the
newest checkpoint that is whole.

"""

GRAD = """\
Write a model's differentiated program as readable text (TVM script): a function main_vjp that takes
the arguments of the model and the gradient of its outputs, and returns outputs and gradients.
"""

GRAD_EXAMPLES = """\
examples:
  graphgrad grad model.onnx
  graphgrad grad model.onnx --out model_vjp.py
  graphgrad grad model.onnx --wrt input --wrt fc.weight --json

"""

COVERAGE = """\
Show which ops of a model have which gradient, before anything runs: one of graphgrad's own rules
(hand), one of the user's or of a plug-in (user), one that is derived from the op's tensor
expressions (derived), or none (missing, and why); and where the gradient ends by declaration.
"""

COVERAGE_EXAMPLES = """\
examples:
  graphgrad coverage model.onnx
  graphgrad coverage model.onnx --rules derived --json

"""

CHECK = """\
Check a model's gradients against finite differences in float64: node by node, at the values that
arise in the model, and then the whole model with respect to its inputs and the parameters that
train. The first node that disagrees is named.

With --against onnxruntime, compare instead what each node computes, in the dtypes of the file, with
what onnxruntime computes (pip install 'graphgrad[onnxruntime]'). The first node whose value differs
by more than rounding is named, with the element, both numbers and the difference.
"""

CHECK_EXAMPLES = """\
examples:
  graphgrad check model.onnx
  graphgrad check model.onnx --input data.npz         arrays named as the model's inputs
  graphgrad check model.onnx --order 2 --json
  graphgrad check model.onnx --against onnxruntime    values in place of gradients

"""

BENCH = """\
Time the training step of a model, on random data unless --data gives some. With --profile, also say
where its time and memory go: kernels by op class, forward and backward, with the names of the ONNX
nodes and who wrote their gradients, and the bytes in use over the step. With --memory, compare the
step within that budget with the step without one.

With --against torch, compare with PyTorch (pip install 'graphgrad[torch]'), eager and, where there
is a C++ compiler, by torch.compile, images in either memory format: the same weights and batch,
each in a process of its own, in turns, the others stopped. Initial losses must agree. There is a
twin of the files of graphgrad.models, and of convolutional networks like them. The machine should
be idle.

With --predict, compile the step for the GPU --target, on this machine, and predict what it takes
there at least: the sum over its calls of the largest of bytes / speed of memory, operations / rate
of the units that compute them, and the time of a launch. That needs a compiler for CUDA (pip
install 'graphgrad[cuda]'), and cuDNN for its plans (pip install 'graphgrad[cuda-libs]'), no GPU.
"""

BENCH_EXAMPLES = """\
examples:
  graphgrad bench model.onnx
  graphgrad bench model.onnx --against torch
  graphgrad bench model.onnx --memory 0.6
  graphgrad bench model.onnx --predict --target h200 --precision bfloat16
  graphgrad bench model.onnx --profile --batch 32
  graphgrad bench model.onnx --profile --figure profile.svg
  graphgrad bench model.onnx --profile --json

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; default ``sys.argv[1:]``.
    """
    _reserve_standard_streams()
    try:
        try:
            return _run(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        # Files that cannot be read or written have errors of our own: this is standard output.
        if sys.stdout is not None:
            discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return exit_code(signal.SIGPIPE)  # nobody reads: no reason to complain
        _complain(f"standard output cannot be written: {error.strerror or error}")
        return BAD_INPUT


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command line; what the caller caused becomes a line and an exit code."""
    parsed = parser().parse_args(arguments)
    try:
        return parsed.run(parsed)
    except GraphGradError as error:
        _complain(str(error))
        if parsed.json:
            print(json.dumps({"event": "error", "message": str(error)}), flush=True)
        return BAD_INPUT
    except KeyboardInterrupt:
        _complain("stopped")
        return INTERRUPTED


def _complain(text: str) -> None:
    """Write a line to standard error, if that is possible."""
    Stream(sys.stderr).write(f"graphgrad: {text}\n")


def _reserve_standard_streams() -> None:
    """Open the descriptors of closed standard streams, so that no file that is written gets one.

    What libraries print would end up in it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gives the lowest one that is free


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    root = argparse.ArgumentParser(
        prog="graphgrad",
        description="Gradients and training of ONNX models on TVM.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"graphgrad {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_grad(commands)
    _add_coverage(commands)
    _add_check(commands)
    _add_bench(commands)
    _add_report(commands)
    _add_cache(commands)
    return root


def _add_train(commands: argparse._SubParsersAction) -> None:
    """Add the command ``train``."""
    # Settings default to None here, so that --resume can tell which ones were given.
    command = _add_command(commands, "train", "train an ONNX model", TRAIN, TRAIN_EXAMPLES)
    command.set_defaults(run=cli_train.run)
    default = Settings()

    def defaults(setting: str) -> str:
        of_optimizers = ", ".join(f"{name} {values[setting]}" for name, values in DEFAULTS.items())
        built_in = BUILT_IN.get(setting)
        return of_optimizers + (f"; for the digits sgd {built_in}" if built_in else "")

    add = command.add_argument
    add("model", nargs="?", metavar="MODEL", help="ONNX file; default: a ResNet for the digits")
    add("--data", metavar="FILE.npz", help="arrays to train on; default: the digits")
    add("--out", default="graphgrad-out", metavar="FOLDER", help="default: %(default)s")
    add("--resume", action="store_true", help="go on with the run in --out, with its settings")
    add(
        "--save-every",
        metavar="N",
        help="steps, such as 500, or minutes, such as 5m, after which the run is saved; default: "
        f"each epoch, and {DEFAULT_INTERVAL} within a longer one",
    )
    add(
        "--loss",
        metavar="NAME",
        help=f"{', '.join(LOSSES)}, or an output of the model; default: {default.loss}",
    )
    add("--optimizer", choices=list(DEFAULTS), help=f"default: {default.optimizer}")
    add("--lr", type=number, metavar="RATE", help=f"highest rate; default: {defaults('lr')}")
    add(
        "--schedule",
        choices=list(SCHEDULES),
        help=f"cosine: a short rise, then a fall to zero; default: {default.schedule}",
    )
    add("--momentum", type=fraction, metavar="M", help=f"default: {defaults('momentum')}")
    add("--nesterov", action=argparse.BooleanOptionalAction, help="default: sgd with any momentum")
    add("--weight-decay", type=number, metavar="D", help=f"default: {defaults('weight_decay')}")
    add("--clip-norm", type=number, metavar="N", help="largest norm of the whole gradient")
    length = command.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=count, metavar="N", help=f"default: {default.epochs}")
    length.add_argument("--steps", type=count, metavar="N", help="instead of epochs")
    add("--batch", type=count, metavar="N", help=f"examples at a time; default: {default.batch}")
    add(
        "--accumulate",
        type=count,
        metavar="K",
        help=f"batches per step, whose gradients are averaged; default: {default.accumulate}",
    )
    add(
        "--wrt",
        action="append",
        metavar="NAME",
        help="weight that trains, or a pattern; repeatable; default: all but masks, anchors and "
        "what else is no weight, as the notes at the start say",
    )
    add(
        "--freeze",
        action="append",
        metavar="NAME",
        help="weight that does not train, or a pattern such as 'layer1.*'; repeatable",
    )
    add("--seed", type=index, metavar="N", help=f"of weights and order; default: {default.seed}")
    add(
        "--target",
        metavar="TARGET",
        help="llvm (this host), cuda (its GPU), h200, a100, a tag such as nvidia/nvidia-h100, or "
        f'JSON such as \'{{"kind": "cuda", "arch": "sm_90"}}\'; default: {default.target}',
    )
    add(
        "--compare-frozen",
        action="store_const",
        const=True,
        help="train a twin whose convolutions do not train, and tell both results",
    )
    _add_constants(command)
    _add_precision(command, default=None)
    _add_memory(command)
    _add_rules(command, default=None)


def _add_grad(commands: argparse._SubParsersAction) -> None:
    """Add the command ``grad``."""
    command = _add_command(commands, "grad", "write a model's gradient", GRAD, GRAD_EXAMPLES)
    command.set_defaults(run=cli_grad.run)
    command.add_argument("model", metavar="MODEL", help="ONNX file")
    command.add_argument("--out", metavar="FILE", help="default: standard output")
    command.add_argument(
        "--wrt",
        action="append",
        metavar="NAME",
        help="input or weight to differentiate with respect to; repeatable; default: all weights",
    )
    _add_constants(command)
    _add_precision(command)
    _add_rules(command)


def _add_coverage(commands: argparse._SubParsersAction) -> None:
    """Add the command ``coverage``."""
    summary = "show which ops have which gradient"
    command = _add_command(commands, "coverage", summary, COVERAGE, COVERAGE_EXAMPLES)
    command.set_defaults(run=cli_coverage.run)
    command.add_argument("model", metavar="MODEL", help="ONNX file")
    _add_constants(command)
    _add_precision(command)
    _add_rules(command)


def _add_check(commands: argparse._SubParsersAction) -> None:
    """Add the command ``check``."""
    summary = "check gradients against finite differences"
    command = _add_command(commands, "check", summary, CHECK, CHECK_EXAMPLES)
    command.set_defaults(run=cli_check.run)
    add = command.add_argument
    add("model", metavar="MODEL", help="ONNX file")
    add("--input", metavar="FILE.npz", help="values of the inputs; default: random ones")
    add("--order", type=int, choices=[1, 2], help="2: the gradient's gradient too")
    add("--seed", type=index, default=0, metavar="N", help="of what is drawn; default: %(default)s")
    add("--against", choices=["onnxruntime"], help="compare values with it, not gradients")
    _add_constants(command)


def _add_bench(commands: argparse._SubParsersAction) -> None:
    """Add the command ``bench``."""
    summary = "time a training step, and profile it"
    command = _add_command(commands, "bench", summary, BENCH, BENCH_EXAMPLES)
    command.set_defaults(run=cli_bench.run)
    add = command.add_argument
    add("model", metavar="MODEL", help="ONNX file")
    add(
        "--against",
        choices=["torch"],
        help="compare with a twin in PyTorch, eager and compiled, in turns",
    )
    add(
        "--predict",
        action="store_true",
        help="say what a step takes at least on the GPU --target, h200 or a100, which need not be "
        "here; runs nothing",
    )
    add("--profile", action="store_true", help="say where time and memory go")
    add("--figure", metavar="FILE", help="draw the profile, as .svg or .png (needs matplotlib)")
    _add_sample_step(command)
    _add_constants(command)
    _add_precision(command)
    _add_memory(command)
    _add_rules(command)


def _add_report(commands: argparse._SubParsersAction) -> None:
    """Add the command ``report``."""
    summary = "draw a model, its gradients and its training step"
    command = _add_command(commands, "report", summary, cli_report.DESCRIPTION, cli_report.EXAMPLES)
    command.set_defaults(run=cli_report.run)
    add = command.add_argument
    add("model", metavar="MODEL", help="ONNX file")
    add(
        "--out",
        default=cli_report.DEFAULT_OUT,
        metavar="FILE.html",
        help="replaced if it is there; default: %(default)s",
    )
    _add_sample_step(command, least_steps=index)
    command.set_defaults(steps=cli_bench.DEFAULT_STEPS)
    for option, effect in (("--wrt", "trains"), ("--freeze", "does not train")):
        add(option, action="append", metavar="NAME", help=f"weight that {effect}, as of train")
    _add_constants(command)
    _add_precision(command)
    _add_memory(command)
    _add_rules(command)


def _add_sample_step(
    command: argparse.ArgumentParser, least_steps: Callable[[str], float] | None = None
) -> None:
    """Add the arguments of a command that makes some steps to look at them."""
    add = command.add_argument
    add("--data", metavar="FILE.npz", help="arrays to train on, as of train; default: random ones")
    add(
        "--batch",
        type=count,
        default=cli_bench.DEFAULT_BATCH,
        metavar="N",
        help="examples of a step, where the model leaves them open; default: %(default)s",
    )
    add(
        "--steps",
        type=least_steps or count,
        metavar="N",
        help=f"steps that are timed; default: {cli_bench.DEFAULT_STEPS}",
    )
    add(
        "--loss",
        default=Settings().loss,
        metavar="NAME",
        help=f"{', '.join(LOSSES)}, or an output of the model; default: %(default)s",
    )
    add("--target", default=Settings().target, metavar="TARGET", help="as of train")
    add("--seed", type=index, default=0, metavar="N", help="of what is drawn; default: %(default)s")


def _add_cache(commands: argparse._SubParsersAction) -> None:
    """Add the command ``cache``."""
    summary = "show or empty the cache of compiled programs"
    command = _add_command(commands, "cache", summary, cli_cache.DESCRIPTION, cli_cache.EXAMPLES)
    command.set_defaults(run=cli_cache.run)
    command.add_argument("--clear", action="store_true", help="drop all that is kept")


def _add_constants(command: argparse.ArgumentParser) -> None:
    """Add the argument ``--constants`` to a command."""
    command.add_argument(
        "--constants",
        action="append",
        metavar="NAME",
        help="value of the file that is no weight, or a pattern such as '*.mask'; repeatable",
    )


def _add_precision(command: argparse.ArgumentParser, default: str | None = FULL) -> None:
    """Add the arguments ``--precision`` and ``--full-precision`` to a command."""
    command.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=default,
        help="in which convolutions, matrix products and what follows them compute; weights and "
        f"sums stay float32; default: {FULL}",
    )
    command.add_argument(
        "--full-precision",
        action="append",
        metavar="NODE",
        help=f"ONNX node that computes in {FULL} in spite of --precision; repeatable",
    )


def _add_memory(command: argparse.ArgumentParser) -> None:
    """Add the argument ``--memory`` to a command."""
    command.add_argument(
        "--memory",
        metavar="BYTES",
        help="most memory that a step may hold, such as 2GB or 500M, or a share of what it would "
        "hold otherwise, such as 0.6; results are computed twice where it is short",
    )


def _add_rules(command: argparse.ArgumentParser, default: str | None = RULES[0]) -> None:
    """Add the argument ``--rules`` to a command."""
    command.add_argument(
        "--rules",
        choices=RULES,
        default=default,
        help="auto: the rules of users, plug-ins and graphgrad, and what is derived; derived: all "
        f"but graphgrad's, whose gradients are derived then; default: {RULES[0]}",
    )


def _add_command(
    commands: argparse._SubParsersAction, name: str, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """Add a command with its help texts, and ``--json``, which all commands take."""
    command = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=examples + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--json", action="store_true", help="one JSON object per line on standard output"
    )
    return command


def _number(kind: Callable[[str], float], low: float, below: float, expected: str) -> Callable:
    """A parser of an argument that is a number from `low` up to, but without, `below`."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan  # which is in no range
        if not low <= value < below:
            raise argparse.ArgumentTypeError(f"expected {expected}, given {text!r}")
        return value

    return read


count = _number(int, 1, math.inf, "a whole number of at least 1")
index = _number(int, 0, math.inf, "a whole number of at least 0")
number = _number(float, 0, math.inf, "a finite number of at least 0")
fraction = _number(float, 0, 1, "a number of at least 0 and less than 1")
