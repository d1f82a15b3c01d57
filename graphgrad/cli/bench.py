"""The command ``graphgrad bench``."""

from __future__ import annotations

import argparse
import json

from ..errors import ArgumentError
from ..frontend.onnx_import import from_onnx
from ..profile.profile import profile
from ..profile.text import check_figure_path, timing_text, write_profile_figure
from ..report.table import show
from ..train.step import train_step
from .job import chosen_precision
from .sample_batch import sample_batch

DEFAULT_BATCH = 8
DEFAULT_STEPS = 10


def run(arguments: argparse.Namespace) -> int:
    """Time the training step of a model, and say where the time goes if asked for."""
    if arguments.figure is not None:
        if not arguments.profile:
            raise ArgumentError("--figure draws a profile; give --profile too")
        check_figure_path(arguments.figure)
    model = from_onnx(arguments.model, constants=arguments.constants or ())
    step = train_step(
        model,
        arguments.loss,
        target=arguments.target,
        precision=chosen_precision(arguments.precision, arguments.full_precision),
        seed=arguments.seed,
        rules=arguments.rules,
    )
    inputs, targets = sample_batch(model, arguments)
    step_profile = profile(step, inputs, targets, steps=arguments.steps)
    if arguments.figure is not None:
        write_profile_figure(arguments.figure, step_profile)
    if arguments.json:
        facts = step_profile.facts() if arguments.profile else step_profile.timing_facts()
        print(json.dumps({"model": arguments.model, **facts}))
    else:
        show(step_profile if arguments.profile else timing_text(step_profile))
    return 0
