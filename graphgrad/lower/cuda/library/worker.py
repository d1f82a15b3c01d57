"""A process that plans: problems come as JSON on standard input, and plans go to standard output.

It is run by its path, so that neither graphgrad nor TVM is imported: cuDNN plans within a process
whose driver is a stand-in (`no_device`), which must not be found by anything else.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any


def main() -> None:
    """Plan what standard input asks for; a line of JSON for each problem, as soon as it is done."""
    asked = json.load(sys.stdin)
    for path in asked["libraries"]:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    sys.path.insert(0, asked["runtime"])
    from cudnn.backend import CudnnError
    from cudnn.graphs import device
    from cudnn.plans import plan
    from cudnn.problem import Problem

    def answer(described: dict[str, Any]) -> dict[str, str]:
        try:
            target = device(asked["properties"])
            problem = Problem.from_json(described)
            made = plan(problem, target, asked["architecture"], asked["limit"])
        except CudnnError as error:
            return {"error": str(error)}
        return {"plan": made.to_json()}

    for described in asked["problems"]:
        print(json.dumps(answer(described)), flush=True)


if __name__ == "__main__":
    main()
