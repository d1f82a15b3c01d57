"""The process that times plans of cuDNN on the GPU: the best ten of each problem of the kit.

    python tune.py

Prints lines of JSON as it goes. The first is what cuDNN says of the device: ``device`` (its name),
``cudnn`` (the version) and ``properties``; an ``error`` where there is none. The others are for one
problem each, as `graphgrad.lower.cuda.library.timed` reads them, or an ``error``, of those of its
plans that fail. A plan is executed by the function
that compiled steps call, `REPEATS` times in a graph of CUDA's, so that the host's time does not
count.
"""

from __future__ import annotations

import importlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

import numpy as np
import paths  # noqa: F401 (where `channel` is found)
from channel import private_output, send, told
from kit import Kit

MODULES = (
    *("cuda_graph", "folder", "machine"),
    *("cudnn.backend", "cudnn.engine", "cudnn.plans", "cudnn.problem"),
)
"""Of the loader's package."""

PLANS = 10
REPEATS = 20
LAUNCHES = 5

_SIGNIFICANDS = {"bfloat16": 7, "float16": 10, "float32": 23}
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_DRAWN = 1 << 20
"""Numbers that are drawn; larger tensors repeat them."""


def main() -> None:
    channel = private_output()
    try:
        tune(Kit(), channel)
    except Exception as error:
        send(channel, {"error": told(error)})


def tune(kit: Kit, channel: TextIO) -> None:
    """Send what is known of the device, then a line for each problem."""
    problems = kit.problems()
    step = min(path.parent for path in kit.steps("").glob("*/exported_step"))
    loader = kit.loader(step.name)
    runtime = {name: importlib.import_module(f"{loader.__name__}.{name}") for name in MODULES}
    engine, backend = runtime["cudnn.engine"], runtime["cudnn.backend"]
    gpu = runtime["machine"].open_device(runtime["folder"].read_manifest(step), None)
    device = engine._device(0)
    text = bytes(device.properties.values(backend.Attribute.DEVICE_JSON, backend.Type.CHAR))
    properties = json.loads(text.rstrip(b"\0"))
    name = properties["deviceName"]
    about = {"device": name, "cudnn": backend.version(), "properties": properties}
    send(channel, about)
    for described in problems:
        problem = runtime["cudnn.problem"].Problem.from_json(described)
        proposed = runtime["cudnn.plans"].plans_of(problem, device.properties, device.architecture)
        failures: list[str] = []
        try:
            plans = timed(runtime, problem, itertools.islice(proposed, PLANS), gpu, failures)
        except Exception as error:  # it is told, and the other problems go on
            plans, failures = [], [told(error)]
        if failures:
            send(channel, {"error": f"{problem.op}: {'; '.join(dict.fromkeys(failures))}"})
        if plans:
            send(channel, {"problem": described, "plans": plans})


def timed(
    runtime: Mapping[str, Any],
    problem: Any,
    plans: Iterable[Any],
    gpu: Any,
    failures: list[str],
) -> list[dict[str, Any]]:
    """Time plans of a problem on a device; return them with the fastest first.

    Why others fail is added to the failures.
    """
    empty = runtime["cuda_graph"].empty
    inputs = [_drawn(runtime, form, gpu) for form in problem.inputs]
    written = problem.outputs[:1] if problem.joined else problem.outputs
    outputs = [empty((form.size,), form.dtype, gpu) for form in written]
    entries = []
    for plan in plans:
        try:
            workspace = empty((max(plan.workspace, 1),), "uint8", gpu)
            _check_loads(runtime, plan, workspace)
            arguments = [*inputs, plan.to_json(), *outputs, workspace]
            seconds = _seconds(runtime, arguments, gpu)
        except Exception as error:  # the others go on
            failures.append(f"engine {plan.engine}: {told(error)}")
            continue
        entry = {"configuration": plan.configuration, "workspace": plan.workspace}
        entries.append({**entry, "seconds": seconds})
    return sorted(entries, key=lambda entry: entry["seconds"])


def _check_loads(runtime: Mapping[str, Any], plan: Any, workspace: Any) -> None:
    """Raise unless what is executed is the plan: in place of one that is refused another is made.

    Raises
    ------
    RuntimeError
    """
    index = workspace.device.index
    loaded = runtime["cudnn.engine"]._loaded(plan.to_json(), index, workspace.numel()).plan
    if loaded.configuration != plan.configuration:
        raise RuntimeError("cuDNN does not load what it has proposed")


def _seconds(runtime: Mapping[str, Any], arguments: list[Any], gpu: Any) -> float:
    """Return the median seconds of a call, of `LAUNCHES` launches of a graph of `REPEATS`."""

    def work() -> list[Any]:
        for _ in range(REPEATS):
            runtime["cudnn.engine"].compute(*arguments)
        return []

    recorded = runtime["cuda_graph"].Recorded(work, gpu, (), ())
    scratch: list[Any] = []
    for _ in range(2):  # what is called is loaded, then recorded
        recorded(scratch)
    if not recorded.is_recorded:
        raise RuntimeError(f"a call of cuDNN is not recorded: {recorded.refusal}")
    seconds = []
    for _ in range(LAUNCHES):
        gpu.sync()
        start = time.perf_counter()
        recorded(scratch)
        gpu.sync()
        seconds.append((time.perf_counter() - start) / REPEATS)
    return statistics.median(seconds)


def _drawn(runtime: Mapping[str, Any], form: Any, gpu: Any) -> Any:
    """Return a tensor of a form: floats between 1 and 2 of either sign, else zeros and ones."""
    count = form.size
    kept = _SIGNIFICANDS.get(form.dtype)
    width = 8 * _BYTES.get(form.dtype, 1)
    unsigned = np.dtype(f"uint{width}")
    bits = np.random.default_rng(0).integers(0, 1 << width, min(count, _DRAWN), unsigned)
    if kept is None:
        bits &= unsigned.type(1)
    else:  # the sign and the significand are drawn; the exponent is that of 1
        exponent = ((1 << (width - kept - 2)) - 1) << kept
        bits &= unsigned.type(1 << (width - 1) | (1 << kept) - 1)
        bits |= unsigned.type(exponent)
    tensor = runtime["cuda_graph"].empty((count,), form.dtype, gpu)
    tensor._create_view((count,), str(unsigned)).copyfrom(np.resize(bits, count))
    return tensor


if __name__ == "__main__":
    sys.exit(main())
