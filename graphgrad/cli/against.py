"""A model's training step beside PyTorch's: ``graphgrad bench --against torch``."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..errors import ArgumentError
from ..frontend.onnx_import import from_onnx
from ..report.table import show, table
from ..required import require
from ..runtime.threads import threads
from ..train.optimizer import SGD
from ..train.step import train_step
from .contender import Contender, ContenderError, take_turns
from .left_out import check_left_out
from .sample_batch import sample_batch

LEARNING_RATE, MOMENTUM = 0.01, 0.9
ROUNDS, TURN_SECONDS = 5, 1.0
TOLERANCE = 1e-4
"""By how much, relative, initial losses may differ that are the same."""

_PLAIN = {
    "loss": "cross_entropy",
    "precision": "float32",
    "full_precision": None,
    "memory": None,
    "profile": False,
    "predict": False,
    "steps": None,
    "target": "llvm",
    "figure": None,
    "constants": None,
}
"""The options that have no meaning for PyTorch, or for steps in turns, and their defaults."""

OURS = "graphgrad"
COMPILERS = ("g++", "clang++", "c++")


def compare(arguments: argparse.Namespace) -> int:
    """Print the times of a model's step by graphgrad and by PyTorch; return 1 if one failed.

    Raises
    ------
    ArgumentError
        PyTorch or a twin is missing, or an option asks for what only graphgrad does.
    """
    check_left_out("--against torch compares plain steps", arguments, _PLAIN)
    require("torch")
    model = from_onnx(arguments.model)
    if len(model.inputs) != 1:
        raise ArgumentError("--against torch: the twin takes one input, and this model has several")
    _check_twin(onnx.load(arguments.model))
    inputs, labels = sample_batch(model, arguments)
    assert labels is not None  # those of cross entropy
    examples = np.asarray(inputs[model.inputs[0]] if isinstance(inputs, Mapping) else inputs)
    with tempfile.TemporaryDirectory() as folder:
        batch = Path(folder) / "batch.npz"
        np.savez(batch, inputs=examples, labels=labels)
        results = _competed(_entrants(arguments, batch, examples.ndim == 4))
    _print(arguments, len(examples), results)
    return int(any("error" in result for result in results.values()))


def _check_twin(proto: onnx.ModelProto) -> None:
    """Raise `ArgumentError` unless PyTorch has a network of a file."""
    from graphgrad.models.torch_twin import twin  # noqa: PLC0415 (needs torch)

    try:
        twin(proto)
    except ValueError as error:
        raise ArgumentError(
            f"--against torch: there is no twin of this file in PyTorch ({error}); there are twins "
            "of the files of graphgrad.models, and of convolutional networks like them"
        ) from error


Entrant = Callable[[], Contender]


def _entrants(arguments: argparse.Namespace, batch: Path, is_image: bool) -> dict[str, Entrant]:
    """What starts each contender, by name."""
    files = (arguments.model, str(batch))
    entrants: dict[str, Entrant] = {OURS: partial(Contender, _ours, (*files, arguments.rules))}
    forms = [False, True] if any(map(shutil.which, COMPILERS)) else [False]
    for compiled in forms:
        for channels_last in [False, True] if is_image else [False]:
            name = "torch.compile" if compiled else "torch"
            name += ", channels_last" if channels_last else ""
            entrants[name] = partial(
                Contender, _torch, (*files, threads(), channels_last, compiled)
            )
    return entrants


def _competed(entrants: Mapping[str, Entrant]) -> dict[str, dict[str, Any]]:
    """The figures of each contender: those that were measured, or an error."""
    results: dict[str, dict[str, Any]] = {}
    running: dict[str, Contender] = {}
    try:
        for name, start in entrants.items():
            try:
                running[name] = start()
            except ContenderError as error:
                results[name] = {"error": str(error)}
        _check_losses(running)
        for name, seconds in take_turns(running, ROUNDS, TURN_SECONDS).items():
            contender = running[name]
            results[name] = (
                {"error": str(seconds)}
                if isinstance(seconds, ContenderError)
                else {
                    "step_ms": 1e3 * seconds,
                    "first_step_seconds": contender.first_step,
                    "initial_loss": contender.loss,
                }
            )
    finally:
        for contender in running.values():
            contender.close()
    return {name: results[name] for name in entrants}


def _check_losses(running: Mapping[str, Contender]) -> None:
    """Raise `ArgumentError` unless all contenders compute the same thing."""
    losses = {name: contender.loss for name, contender in running.items()}
    if losses:
        first = next(iter(losses.values()))
        if not all(math.isclose(first, loss, rel_tol=TOLERANCE) for loss in losses.values()):
            raise ArgumentError(f"the initial losses differ, so times compare nothing: {losses}")


def _print(
    arguments: argparse.Namespace, batch: int, results: Mapping[str, Mapping[str, Any]]
) -> None:
    """Print the figures, as a table or as JSON."""
    measured = {name: result for name, result in results.items() if "error" not in result}
    ours = measured.get(OURS, {}).get("step_ms")
    theirs = [result["step_ms"] for name, result in measured.items() if name != OURS]
    ratio = ours / min(theirs) if ours is not None and theirs else None
    if arguments.json:
        facts = {"model": arguments.model, "against": arguments.against, "batch": batch}
        print(json.dumps({**facts, "threads": threads(), "contenders": results, "ratio": ratio}))
        return
    rows = [
        [
            name,
            f"{result['step_ms']:.2f}",
            "" if ours is None else f"{result['step_ms'] / ours:.2f}",
            f"{result['first_step_seconds']:.1f}",
        ]
        for name, result in measured.items()
    ]
    show(table(["contender", "ms per step", "ratio", "first step s"], rows, right=[1, 2, 3]))
    for name, result in results.items():
        if "error" in result:
            show(f"{name} failed: {result['error']}")
    if ratio is not None:
        show(f"graphgrad takes {ratio:.2f} of the time of PyTorch's best, at batch {batch}")


def _ours(model: str, batch: str, rules: str) -> Callable[[], float]:
    step = train_step(
        from_onnx(model),
        "cross_entropy",
        optimizer=SGD(LEARNING_RATE, momentum=MOMENTUM),
        rules=rules,
    )
    with np.load(batch) as arrays:
        inputs, labels = arrays["inputs"], arrays["labels"]
    return lambda: float(step(inputs, labels))


def _torch(
    model: str, batch: str, count: int, channels_last: bool, compiled: bool
) -> Callable[[], float]:
    import torch  # noqa: PLC0415 (which graphgrad's own process does without)

    from graphgrad.models.torch_step import training_step  # noqa: PLC0415
    from graphgrad.models.torch_twin import twin  # noqa: PLC0415

    torch.set_num_threads(count)
    with np.load(batch) as arrays:
        inputs, labels = arrays["inputs"], arrays["labels"]
    network = twin(onnx.load(model))
    return training_step(network, inputs, labels, LEARNING_RATE, MOMENTUM, channels_last, compiled)
