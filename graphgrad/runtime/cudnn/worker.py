"""A process that plans: problems come as JSON on standard input, and plans go to standard output.

It imports this package alone, neither graphgrad nor TVM: cuDNN plans where the driver is a stand-in
(`graphgrad.lower.cuda.library.no_device`), which nothing else may find.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Mapping
from typing import Any

from .backend import CudnnError
from .graphs import device
from .plans import load, plan
from .problem import Problem


def main() -> None:
    """Plan what standard input asks for; a line of JSON for each problem, as soon as it is done."""
    asked = json.load(sys.stdin)
    for path in asked["libraries"]:  # before cuDNN, which takes what is loaded already
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    for described in asked["problems"]:
        print(json.dumps(_answer(asked, described)), flush=True)


def _answer(asked: Mapping[str, Any], described: Mapping[str, Any]) -> dict[str, str]:
    try:
        target = device(asked["properties"])
        made = plan(Problem.from_json(described), target, asked["architecture"], asked["limit"])
        load(made, target)  # as the program will
    except CudnnError as error:
        return {"error": str(error)}
    return {"plan": made.to_json()}
