"""The process of one contender of `kernels.py`: compiles kernels, and times the last one.

    python kernel_worker.py MODULE OPTIONS THREADS CLOCK

Speaks JSON, one object a line. It begins with what it is. For ``{"case": ..., "result": FILE}`` it
makes a case its kernel, leaves the values in a file of numpy, and answers how long that took, or
why it failed; for ``{"untimed": n, "timed": n}`` it runs the kernel and answers the seconds of each
call.

A contender's module has ``prepare(case, threads, **options) -> (run, values)``: `run` makes one
call, `values` returns the result of one as a numpy array, in the layout of `kernel_cases`.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from channel import private_output, send, told
from kernel_cases import KINDS, from_json
from layer_cases import layer_from_json
from worker import timed_steps


def main() -> None:
    module, options, threads, clock_name = sys.argv[1:]
    clock = getattr(time, clock_name)
    channel = private_output()
    contender = importlib.import_module(module)
    send(channel, {"includes": contender.INCLUDES, "memory": None})
    run: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        if "case" not in request:
            timed_steps(run, request["untimed"], clock)
            seconds = timed_steps(run, request["timed"], clock)
            send(channel, {"seconds": seconds, "memory": None})
            continue
        run = None
        gc.collect()  # the tensors of the last case
        start = time.perf_counter()
        try:
            read = from_json if request["case"]["kind"] in KINDS else layer_from_json
            run, values = contender.prepare(
                read(request["case"]), int(threads), **json.loads(options)
            )
            np.save(Path(request["result"]), values())
        except Exception as error:
            send(channel, {"failed": told(error)})
        else:
            send(channel, {"prepare_seconds": time.perf_counter() - start})


if __name__ == "__main__":
    main()
