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

from .backend import CudnnError, version
from .graphs import device
from .plans import load, make_plan
from .problem import Problem


def main() -> None:
    """Plan what standard input asks for; a line of JSON for each problem, as soon as it is done."""
    request = json.load(sys.stdin)
    for path in request["libraries"]:  # before cuDNN, which takes what is loaded already
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    for described in request["problems"]:
        print(json.dumps(_answer(request, described)), flush=True)


def _answer(request: Mapping[str, Any], described: Mapping[str, Any]) -> dict[str, str]:
    try:
        target = device(request["properties"])
        problem = Problem.from_json(described)
        timed = request["timed"].get(str(version()), {}).get(problem.key, ())
        order = [(engine, tuple(map(tuple, settings))) for engine, settings in timed]
        plan = make_plan(problem, target, request["architecture"], request["limit"], order)
        load(plan, target)  # as the program will
    except CudnnError as error:
        return {"error": str(error)}
    return {"plan": plan.to_json()}
