"""The campaign of saved steps: whatever ends ``step.save`` or ``step.export``, old or new is there.

    python bench/campaigns/saved_steps.py --cases 500 [--seed N] [--jobs N] [--tally FILE]

As the campaign of crashes, with real steps: checkpoints are saved over checkpoints, and exports
over exports, which are compiled and linked meanwhile. What is there after a fault is loaded, must
have the bits of one version, and makes a step.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import paths  # noqa: F401 (where the modules of `bench` are found)
from campaign import Campaign, Case, Disagreement, main
from crashes import Writer, judge_writer
from faults import FAULTS, LATE

import graphgrad as gg
from graphgrad.models import mlp
from graphgrad.runtime import ExportedStep

_INPUTS = np.random.default_rng(0).random((4, 6), "float32")
_LABELS = np.arange(4) % 3


@cache
def _step(version: int) -> gg.TrainStep:
    """A step that has been made as often as its version says; of version 0, one to load into."""
    step = gg.train_step(gg.from_onnx(mlp((6, 5, 3))), optimizer=gg.optim.Adam(0.01))
    for _ in range(version):
        step(_INPUTS, _LABELS)
    return step


def _write_checkpoint(folder: Path, first: int, last: int) -> None:
    for version in range(first, last + 1):
        _step(version).save(folder / "step.safetensors", {"version": version})


def _read_checkpoint(folder: Path) -> int:
    step = _step(0)
    return _version(step, int(step.load(folder / "step.safetensors")["version"]))


def _write_export(folder: Path, first: int, last: int) -> None:
    for version in range(first, last + 1):
        _step(version).export(folder / "export", shapes={"input": _INPUTS.shape})


def _read_export(folder: Path) -> int:
    step = ExportedStep(folder / "export")
    return _version(step, step.steps)


def _version(step: Any, version: int) -> int:
    """The version of a step that was loaded, and what it is now."""
    if step.steps != version or _bits(step) != _bits(_step(version)):
        raise Disagreement("what is loaded is not one version")
    step(_INPUTS, _LABELS)
    if _bits(step) != _bits(_step(version + 1)):
        raise Disagreement("what is loaded does not go on as it should")
    return version


def _bits(step: Any) -> dict[Any, bytes]:
    """All arrays of a step."""
    groups = {"params": step.params, **step.optimizer_state}
    return {(g, name): array.tobytes() for g, of in groups.items() for name, array in of.items()}


WRITERS = {
    "save": Writer(_write_checkpoint, _read_checkpoint),
    "export": Writer(_write_export, _read_export, operations=200),
}


def judge(case: Case) -> Counter[str]:
    """Draw a writer, a fault and when it comes; judge what is there after it."""
    rng = case.rng()
    name, fault = str(rng.choice(list(WRITERS))), str(rng.choice([*FAULTS, LATE]))
    judge_writer(WRITERS[name], fault, case.folder, rng)
    return Counter([f"{name}: {fault}"])


STEPS = Campaign("saved-steps", judge)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"GRAPHGRAD_CACHE": "1", "GRAPHGRAD_CACHE_DIR": folder}
        sys.exit(main(STEPS))
