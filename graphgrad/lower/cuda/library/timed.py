"""Plans that were timed on a GPU, in files beside this module: which of a problem's was fastest.

A file of the folder `FOLDER` is JSON, as the GPU kit (``bench/gpu/tune.py``) writes it::

    {"format": 1, "device": "NVIDIA H200", "cudnn": 92801, "problems": [
        {"problem": {…}, "plans": [
            {"configuration": [22, [["CUDNN_KNOB_TYPE_STAGES", 3], …]], "seconds": 1.2e-5}, …]}]}

``device`` is the name that cuDNN gives it, ``cudnn`` the version that has planned, ``problem`` what
`Problem.to_json` gives, and plans come with the fastest first: a number of an engine and its
settings. A file says nothing of other devices and versions, nor of a problem that is not in it:
these have cuDNN's first plan. Where files of one device and version time the same problem, the last
by name counts. A file that is damaged says nothing at all, and a warning names it.
"""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ....runtime.cudnn.plans import Configuration
from ....runtime.cudnn.problem import Problem

FOLDER = Path(__file__).with_name("timed_plans")

FORMAT = 1

_DAMAGE = (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""What reading a file that is none of these raises."""

Orders = Mapping[str, Sequence[Configuration]]
"""Configurations by the key of a problem, the fastest first."""


def timed_orders(device: str, problems: Sequence[Problem]) -> dict[str, dict[str, Any]]:
    """For each version of cuDNN, what was timed of some problems on a device, by their keys."""
    keys = {problem.key for problem in problems}
    return {
        str(version): {key: order for key, order in orders.items() if key in keys}
        for (name, version), orders in _files(FOLDER).items()
        if name == device
    }


@functools.cache
def _files(folder: Path) -> dict[tuple[str, int], Orders]:
    """What the files of a folder say, by device and version."""
    files: dict[tuple[str, int], dict[str, Sequence[Configuration]]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            device, version, orders = _read(json.loads(path.read_text(encoding="utf-8")))
        except _DAMAGE as error:
            warnings.warn(
                f"{path} is damaged ({type(error).__name__}: {error}): plans are chosen as if it "
                "were not there",
                stacklevel=2,
            )
            continue
        files.setdefault((device, version), {}).update(orders)
    return dict(files)


def _read(content: Any) -> tuple[str, int, Orders]:
    """Device, version and orders of a file.

    Raises
    ------
    One of `_DAMAGE`
        It is none of these files.
    """
    if content["format"] != FORMAT:
        raise ValueError(f"its format is {content['format']}, expected {FORMAT}")
    orders = {
        Problem.from_json(timed["problem"]).key: [
            _configuration(*plan["configuration"]) for plan in sorted(timed["plans"], key=_seconds)
        ]
        for timed in content["problems"]
    }
    return str(content["device"]), int(content["cudnn"]), orders


def _seconds(plan: Mapping[str, Any]) -> float:
    seconds = float(plan["seconds"])
    if not 0 < seconds < math.inf:
        raise ValueError(f"a plan takes {seconds} seconds")
    return seconds


def _configuration(engine: int, settings: Any) -> Configuration:
    return int(engine), tuple((str(name), int(value)) for name, value in settings)
