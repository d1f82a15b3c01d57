"""The process of one check: makes the steps of a reference and tells how far off it ended.

    python check.py mlp.float32 graphgrad

Prints one JSON object: ``losses``, ``distances`` by kind, the ``worst`` tensor, ``complaints``; or
an ``error``.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import paths  # noqa: F401 (where `channel` is found)
from accuracy import (
    Trajectory,
    complaints_against,
    complaints_float64,
    distances,
    worst_tensor,
)
from channel import private_output, send, told
from kit import Kit
from reference import Reference, in_dtype, load, stored_in


def main() -> None:
    case, by = sys.argv[1:]
    channel = private_output()
    try:
        send(channel, check(Kit(), case, by))
    except Exception as error:
        send(channel, {"error": told(error)})


def check(kit: Kit, case: str, by: str) -> dict[str, Any]:
    """Return how a run of a case, such as ``mlp.float32``, compares with the reference."""
    family, dtype = case.rsplit(".", 1)
    reference = load(kit.reference(family))
    run = RUNS[by](kit, case, reference)
    ours = distances(run, reference.exact)
    theirs = reference.distances_in(dtype)
    complaints = []
    if dtype == "float64":
        complaints = complaints_float64(run, reference.exact)
    elif by == "graphgrad":
        complaints = complaints_against(ours, theirs)
    return {
        "losses": run.losses,
        "distances": ours,
        "torch_cpu_distances": theirs,
        "worst": worst_tensor(run, reference.exact),
        "complaints": complaints,
    }


def by_graphgrad(kit: Kit, case: str, reference: Reference) -> Trajectory:
    """Make the steps with the exported step."""
    step = kit.load_step(case)
    dtype = stored_in(case.rsplit(".", 1)[1])
    losses = [float(step(inputs, labels)) for inputs, labels in in_dtype(reference.batches, dtype)]
    if step.skipped:
        raise ValueError(f"{step.skipped} of {step.steps} steps met something that is not finite")
    start, params, state = reference.weights, step.params, step.state
    momentum = step.optimizer_state["momentum"]
    return Trajectory(
        losses,
        {
            "params": {name: _double(params[name]) - start[name] for name in momentum},
            "state": {name: _double(array) - start[name] for name, array in state.items()},
            "momentum": {name: _double(array) for name, array in momentum.items()},
        },
    )


def by_torch(kit: Kit, case: str, reference: Reference) -> Trajectory:
    """Make the steps with torch on the same device, in the same precision."""
    import torch  # noqa: PLC0415 (a check of graphgrad does without)
    import twins  # noqa: PLC0415

    family, precision = case.rsplit(".", 1)
    dtype = stored_in(precision)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    weights = {
        name: array.astype(dtype) if array.dtype.kind == "f" else array
        for name, array in reference.weights.items()
    }
    batches = in_dtype(reference.batches, dtype)
    rate, momentum = (float(reference.facts[key]) for key in ("rate", "momentum"))
    net = twins.family(family, weights)
    is_half = precision == "bfloat16"
    return twins.trajectory(net, batches, rate, momentum, kit.device, is_half)


RUNS = {"graphgrad": by_graphgrad, "torch": by_torch}


def _double(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


if __name__ == "__main__":
    main()
