"""The command ``graphgrad bench``."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..errors import ArgumentError
from ..frontend.onnx_import import from_onnx
from ..profile.prediction import predict
from ..profile.profile import Profile, profile
from ..profile.text import budget_text, check_figure_path, timing_text, write_profile_figure
from ..report.table import show
from ..train.recipe import recipe
from ..train.step import DEFAULT_OPTIMIZER, train_step
from .against import compare
from .job import chosen_memory, chosen_precision
from .left_out import check_left_out
from .sample_batch import sample_batch

DEFAULT_BATCH = 8
DEFAULT_STEPS = 10


def run(arguments: argparse.Namespace) -> int:
    """Time the training step of a model, and say where the time goes if asked for."""
    if arguments.against is not None:
        return compare(arguments)
    if arguments.predict:
        return _predict(arguments)
    if arguments.figure is not None:
        if not arguments.profile and arguments.memory is None:
            raise ArgumentError("--figure draws a profile; give --profile too")
        check_figure_path(arguments.figure)
    model = from_onnx(arguments.model, constants=arguments.constants or ())
    batch = sample_batch(model, arguments)
    budget = chosen_memory(arguments.memory)

    def profile_within(memory: int | float | None) -> Profile:
        step = train_step(
            model,
            arguments.loss,
            target=arguments.target,
            precision=chosen_precision(arguments.precision, arguments.full_precision),
            memory=memory,
            seed=arguments.seed,
            rules=arguments.rules,
        )
        return profile(step, *batch, steps=arguments.steps or DEFAULT_STEPS)

    without = profile_within(None) if budget is not None else None
    step_profile = profile_within(budget)
    if arguments.figure is not None:
        write_profile_figure(arguments.figure, step_profile, without)
    if arguments.json:
        facts = _facts(step_profile, arguments)
        if without is not None:
            facts["without_budget"] = _facts(without, arguments)
        print(json.dumps({"model": arguments.model, **facts}))
    else:
        show(step_profile if arguments.profile else timing_text(step_profile))
        if without is not None:
            show(budget_text(step_profile, without))
    return 0


def _predict(arguments: argparse.Namespace) -> int:
    """Say what a step takes on a GPU that need not be there."""
    ignored = {"profile": False, "figure": None, "steps": None}
    check_left_out("--predict runs nothing", arguments, ignored)
    model = from_onnx(arguments.model, constants=arguments.constants or ())
    made = recipe(
        model,
        arguments.loss,
        DEFAULT_OPTIMIZER,
        None,
        arguments.target,
        arguments.seed,
        arguments.rules,
        precision=chosen_precision(arguments.precision, arguments.full_precision),
        memory=chosen_memory(arguments.memory),
    )
    prediction = predict(made, *sample_batch(model, arguments))
    if arguments.json:
        print(json.dumps({"model": arguments.model, **prediction.facts()}))
    else:
        show(prediction)
    return 0


def _facts(step_profile: Profile, arguments: argparse.Namespace) -> dict[str, Any]:
    """What is printed of a profile as JSON."""
    facts = step_profile.facts() if arguments.profile else step_profile.timing_facts()
    timeline = step_profile.memory
    if arguments.memory is not None and timeline is not None:
        facts["timeline"] = timeline.totals
    return facts
