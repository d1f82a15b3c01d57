"""The command ``graphgrad report``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..frontend.model import Model
from ..frontend.onnx_import import from_onnx
from ..precision.choice import FULL
from ..profile.html import check_report_path, report_page, write_report
from ..profile.profile import Profile, profile
from ..profile.text import timing_text
from ..report.graph import Subject
from ..train.step import train_step
from .bench import DEFAULT_BATCH
from .job import Settings, chosen_memory, chosen_precision, freeze_matching, matching
from .left_out import check_left_out
from .sample_batch import sample_batch

DEFAULT_OUT = "graphgrad-report.html"

_OF_STEPS = {
    "data": None,
    "batch": DEFAULT_BATCH,
    "loss": Settings().loss,
    "target": Settings().target,
    "precision": FULL,
    "full_precision": None,
    "memory": None,
}
"""The options that say how steps are made, and their defaults."""

DESCRIPTION = """\
Write what is known of a model and its training step into one HTML page that needs no network: the
graph by ONNX node, colored by who wrote its gradient, by time or by memory; the bytes in use over
the step; the slowest nodes; what does not train, and why. Beside it, a trace for Perfetto.

Some steps are made on random data, or on that of --data, and change nothing in the file. Where a
gradient is missing no step can be made: the page says what is missing, and the exit code is 1.
"""

EXAMPLES = """\
examples:
  graphgrad report model.onnx                         writes graphgrad-report.html
  graphgrad report model.onnx --out step.html --batch 32
  graphgrad report model.onnx --steps 0               the graph and its gradients; compiles nothing
  graphgrad report model.onnx --data data.npz --freeze 'layer1.*' --json

"""


def run(arguments: argparse.Namespace) -> int:
    """Write the report of a model; return 1 if a gradient is missing."""
    path = check_report_path(arguments.out)
    if not arguments.steps:
        check_left_out("--steps 0 makes no step", arguments, _OF_STEPS)
    model = from_onnx(arguments.model, constants=arguments.constants or ())
    if arguments.freeze:
        model = freeze_matching(model, arguments.freeze)
    wrt = matching(model, "--wrt", arguments.wrt) if arguments.wrt else model.trainable()
    subject = Subject(model, tuple(wrt), arguments.rules)
    covered = subject.coverage()
    profiled, why_none = None, ""
    if not covered.complete:
        why_none = "not known: no step can be made, because gradients are missing"
    elif not wrt:
        why_none = "not known: no step can be made, because no weight trains"
    elif not arguments.steps:
        why_none = "not known: no step was made (--steps 0)"
    else:
        profiled = _profile(model, wrt, arguments)
    title = Path(arguments.model).name
    text = report_page(title, subject, covered, profiled, why_none)
    written = write_report(path, text, profiled)
    if arguments.json:
        facts = {
            "model": arguments.model,
            "rules": arguments.rules,
            "files": [str(file) for file in written],
            "missing": [row.op for row in covered.missing],
            "step": None if profiled is None else profiled.timing_facts(),
        }
        print(json.dumps(facts))
    else:
        print(covered.summary() if profiled is None else timing_text(profiled))
        print(f"wrote {' and '.join(map(str, written))}")
    return int(not covered.complete)


def _profile(model: Model, wrt: list[str], arguments: argparse.Namespace) -> Profile:
    """Make steps of the model and say where their time and memory go."""
    step = train_step(
        model,
        arguments.loss,
        wrt=wrt,
        target=arguments.target,
        precision=chosen_precision(arguments.precision, arguments.full_precision),
        memory=chosen_memory(arguments.memory),
        seed=arguments.seed,
        rules=arguments.rules,
    )
    return profile(step, *sample_batch(model, arguments), steps=arguments.steps)
