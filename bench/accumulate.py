"""Gradients added to accumulators: the addition in the gradient's kernel, or in one of its own.

    python bench/accumulate.py --json

Takes about three minutes, half of them for compiling a residual network four times.

Layers: bytes allocated and time of ``grad_req="add"`` against ``"write"`` and a second kernel that
adds the gradients up. Steps: peak memory of a training step of a residual network with donation and
without, predicted from the lowered program and measured in fresh processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from accumulate_programs import FORMS, Program, layer, needed, network, sums, tensors
from field import say
from load import LoadMeter
from machine import facts, versions
from rounds import Rules, Turn, take_rounds
from table import table
from tvm import relax
from worker import timed_steps

import graphgrad as gg
from graphgrad.lower.pipeline import generate, lower

_STEP = Path(__file__).with_name("accumulate_step.py")
_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed leaves the process at once
_TARGET = gg.target("llvm")


def _conv(**attributes: Any) -> Callable[..., Any]:
    return lambda x, w: relax.op.nn.conv2d(x, w, **attributes)


def _layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    return relax.op.nn.layer_norm(x, scale, shift, axes=[-1])


def _embedding(index: Any, w: Any) -> Any:
    return relax.op.take(w, index, axis=0)


_INDEX = relax.TensorType((2048,), "int64")

LAYERS: dict[str, tuple[Callable[..., Any], Any, list[tuple[int, ...]]]] = {
    "linear 1024 x 1024": (relax.op.matmul, (256, 1024), [(1024, 1024)]),
    "linear 1000 x 513": (relax.op.matmul, (100, 1000), [(1000, 513)]),
    "conv 3x3, 256": (_conv(padding=1), (16, 256, 14, 14), [(256, 256, 3, 3)]),
    "conv 1x1, 512": (_conv(), (16, 512, 14, 14), [(512, 512, 1, 1)]),
    "bias 4096": (relax.op.add, (256, 4096), [(4096,)]),
    "layer norm 1024": (_layer_norm, (512, 1024), [(1024,), (1024,)]),
    "embedding 20000 x 256": (_embedding, _INDEX, [(20000, 256)]),
}
SMALL = ("linear 1000 x 513", "bias 4096")
ADD, WRITE = "add", "write, then sum"

MOST_SECONDS = 10.0  # of timed calls, in each form of a program
MOST_CALLS = 1000


class Form:
    """A program whose gradients are added to accumulators: in one function, or by a second one."""

    def __init__(self, program: Program, name: str):
        mod = program.gradient("add" if name == ADD else "write")
        (function,) = (v.name_hint for v, f in mod.functions.items() if f.attrs)
        types = [param.ty for param in mod[function].params]
        wanted = [p.ty for p in program.mod[program.name].params if p.name in program.wrt]
        mods = [mod] if name == ADD else [mod, sums(wanted)]
        lowered = [lower(m, _TARGET) for m in mods]
        self.bytes = {
            key: sum(needed(m)[key] for m in lowered)
            for key in ("allocated_bytes", "scratch_bytes")
        }
        machines = [relax.VirtualMachine(generate(m, _TARGET), tvm.cpu()) for m in lowered]
        self._gradient = machines[0][function]
        self._sum = None if name == ADD else machines[1]["sums"]
        self._arguments = tensors(types)
        self._old = [] if name == ADD else tensors(wanted)

    def run(self) -> None:
        """Add the gradients of one batch up."""
        gradients = self._gradient(*self._arguments)[1]
        if self._sum is not None:
            self._sum(*self._old, *gradients)


def main() -> None:
    options = _options()
    gg.set_threads(None)  # `generate`, unlike `gg.compile`, leaves TVM half of the cores
    rules = Rules(options.rounds, options.max_load, 3 * options.rounds, MOST_SECONDS, 0.3)
    found = {}
    for name, program in programs(options.small).items():
        say(name)
        found[name] = measured(program, rules, options.turn_seconds)
    say("training steps")
    result = {
        "benchmark": "accumulate",
        "programs": found,
        "step": measured_steps(options.small, options.repeats),
        "machine": facts(),
        "versions": versions(),
    }
    print(json.dumps(result, indent=2) if options.json else told(result))


def programs(small: bool) -> dict[str, Program]:
    """Return what is differentiated, by name."""
    layers = {name: layer(*LAYERS[name]) for name in (SMALL if small else LAYERS)}
    return {**layers, "residual network": network(small)}


def measured(program: Program, rules: Rules, turn_seconds: float) -> dict[str, Any]:
    """Return the bytes and the median milliseconds of both forms of a program."""
    forms = {name: Form(program, name) for name in (ADD, WRITE)}
    calls = {}
    for name, form in forms.items():
        (seconds,) = timed_steps(form.run, 2)[1:]  # the first call allocates
        calls[name] = max(1, min(MOST_CALLS, round(turn_seconds / seconds)))
        say(f"  {name}: compiled, {1e3 * seconds:.2f} ms")

    def turn(name: str) -> Turn:
        timed_steps(forms[name].run, int(calls[name] > 1))  # after the other, caches are cold
        meter = LoadMeter(os.getpid())
        return Turn(timed_steps(forms[name].run, calls[name]), meter.foreign_cores())

    records = take_rounds(forms, turn, rules)
    return {
        name: {
            **form.bytes,
            "ms": 1e3 * records[name].median_seconds(),
            "quiet_turns": len(records[name].quiet),
        }
        for name, form in forms.items()
    }


def measured_steps(small: bool, repeats: int) -> dict[str, Any]:
    """Return the peak memory of a training step by form, in MB: predicted, and in processes.

    The processes of both forms run at once: nothing is timed.
    """
    runs: dict[str, list[dict[str, Any]]] = {form: [] for form in FORMS}
    for _ in range(repeats):
        started = {form: _started(form, small) for form in FORMS}
        for form, process in started.items():
            said, _ = process.communicate()
            if process.returncode:
                raise SystemExit(f"the step with its buffers {form} failed; see above")
            runs[form].append(json.loads(said))
            say(f"  {form}: {runs[form][-1]}")
    return {form: _middle(of_form) for form, of_form in runs.items()}


def _started(form: str, small: bool) -> subprocess.Popen[str]:
    command = [sys.executable, str(_STEP), form, *(["--small"] if small else [])]
    return subprocess.Popen(
        command, env=os.environ | _ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )


def _middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median run, with what was measured in terms of what was predicted."""
    middle = sorted(runs, key=lambda run: run["measured_mb"] or 0)[len(runs) // 2]
    measured_mb = middle["measured_mb"]
    ratio = None if measured_mb is None else measured_mb / middle["predicted_mb"]
    return middle | {"measured_to_predicted": ratio}


def told(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    rows = [
        [
            f"{name}, {form}",
            f"{figures['ms']:.3f}",
            f"{figures['allocated_bytes'] / 1e6:.2f}",
            f"{figures['scratch_bytes'] / 1e6:.2f}",
            str(figures["quiet_turns"]),
        ]
        for name, forms in result["programs"].items()
        for form, figures in forms.items()
    ]
    steps = [
        [
            f"step, {form}",
            f"{figures['predicted_mb']:.1f}",
            "" if figures["measured_mb"] is None else f"{figures['measured_mb']:.1f}",
        ]
        for form, figures in result["step"].items()
    ]
    header = ["program, form", "ms", "allocated MB", "scratch MB", "quiet turns"]
    peaks = ["peak of", "predicted MB", "measured MB"]
    return "\n\n".join([table(header, rows), table(peaks, steps)])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--small", action="store_true", help="two layers and a small network")
    parser.add_argument("--rounds", type=int, default=5, help="quiet turns of each form")
    parser.add_argument("--turn-seconds", type=float, default=0.2, help="about how long one takes")
    parser.add_argument("--repeats", type=int, default=1, help="processes of each form of a step")
    parser.add_argument("--max-load", type=float, default=0.2, help="cores that others may use")
    return parser.parse_args()


if __name__ == "__main__":
    main()
