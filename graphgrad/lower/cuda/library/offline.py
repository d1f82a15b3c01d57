"""Planning without a device: problems in, plans or reasons out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .... import runtime
from ....runtime.cudnn.backend import library_path
from ....runtime.cudnn.plans import WORKSPACE_LIMIT, Plan
from ....runtime.cudnn.problem import Problem
from .devices import capability_of
from .no_device import libraries
from .timed import timed_orders

WORKER = [
    sys.executable,
    "-c",
    "import sys; sys.path.insert(0, sys.argv[1]); from cudnn.worker import main; main()",
    str(Path(runtime.__file__).parent),
]
"""The command of the process that plans."""

_answers: dict[tuple[str, str], Plan | str] = {}
"""What is planned already, by the device and the problem."""


def plan_all(
    problems: Sequence[Problem], properties: Mapping[str, Any]
) -> dict[Problem, Plan | str]:
    """For each problem a plan, or why there is none.

    The plan is that which was the fastest of those timed on such a device by the same version of
    cuDNN (`timed`), else cuDNN's first. cuDNN plans in a process of its own. Where it crashes,
    which a library may, the problem that it was at has no plan, and the others are planned by
    another process.

    Parameters
    ----------
    problems : sequence of Problem
    properties : mapping
        Of the device, as in `devices.PROFILES`.

    Raises
    ------
    LoweringError
        There is no C compiler, which planning needs.
    """
    device = json.dumps(properties, sort_keys=True)
    pending = [each for each in dict.fromkeys(problems) if (device, each.key) not in _answers]
    while pending:
        answers, complaint = _ask(pending, properties)
        if len(answers) < len(pending):
            answers.append(f"the process that plans ended: {complaint}")
        for problem, answer in zip(pending, answers, strict=False):
            _answers[device, problem.key] = answer
        pending = pending[len(answers) :]
    return {each: _answers[device, each.key] for each in problems}


def _ask(
    problems: Sequence[Problem], properties: Mapping[str, Any]
) -> tuple[list[Plan | str], str]:
    """The answers of a process, as many as it has given, and the last that it has said."""
    request = {
        "libraries": libraries(),
        "properties": dict(properties),
        "architecture": capability_of(properties),
        "limit": WORKSPACE_LIMIT,
        "timed": timed_orders(properties["deviceName"], problems),
        "problems": [problem.to_json() for problem in problems],
    }
    # What cuDNN logs would be between the answers.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CUDNN_")}
    process = subprocess.run(
        WORKER, input=json.dumps(request), capture_output=True, text=True, check=False, env=environ
    )
    complaint = (process.stderr.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    return [_answer(line) for line in process.stdout.splitlines()], complaint


def _answer(line: str) -> Plan | str:
    answer = json.loads(line)
    return Plan.from_json(answer["plan"]) if "plan" in answer else str(answer["error"])


def is_installed() -> bool:
    """Whether cuDNN is at hand to plan with: as a Python package, so without loading it."""
    return library_path() is not None
