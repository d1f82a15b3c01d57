"""The peak memory of one training step, in a process of its own: predicted and measured.

    python accumulate_step.py FORM [--small]

Prints one JSON object. Started by `accumulate.py`.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import tvm
from accumulate_programs import needed, size, step, tensors
from memory import resident
from tvm import relax

import graphgrad as gg
from graphgrad.lower.pipeline import generate, lower

_STEPS = 3


def main() -> None:
    form, *rest = sys.argv[1:]
    target = gg.target("llvm")
    mod, name = step("--small" in rest, form)
    types = [param.ty for param in mod[name].params]
    lowered = lower(mod, target)
    bytes_needed = needed(lowered)
    arguments = sum(map(size, types))
    machine = relax.VirtualMachine(generate(lowered, target), tvm.cpu())
    baseline = forget_peak()
    run(machine[name], types)
    now = resident()
    measured = None if now is None or baseline is None else now["peak"] - baseline
    predicted = (arguments + sum(bytes_needed.values())) / 1e6
    figures = {"argument_bytes": arguments, **bytes_needed, "predicted_mb": predicted}
    print(json.dumps({**figures, "measured_mb": measured}))


def run(step: Any, types: list[Any]) -> None:
    """Make some steps, each from what the one before returned."""
    given = tensors(types)
    for _ in range(_STEPS):
        results = _flat(step(*given))[1:]  # all but the loss take the places of the last arguments
        given[len(given) - len(results) :] = results
        del results


def forget_peak() -> float | None:
    """Give back what compiling has freed, forget the peak so far; return the memory in use, MB."""
    clear = Path("/proc/self/clear_refs")
    if not clear.exists():
        return None
    ctypes.CDLL(None).malloc_trim(0)
    clear.write_text("5")
    now = resident()
    return None if now is None else now["current"]


def _flat(value: Any) -> list[Any]:
    if hasattr(value, "data_ptr"):
        return [value]
    return [leaf for part in value for leaf in _flat(part)]


if __name__ == "__main__":
    main()
