"""Time of a training step: graphgrad, torch and stock TVM side by side.

    python bench/step.py [--json] [--models resnet18,resnet50] [--contenders graphgrad,torch]
    python bench/step.py --before ../other-checkout --contenders graphgrad
    python bench/step.py --isa avx2
    python bench/step.py --precision bfloat16

A step is forward, loss, backward, batch-norm statistics and SGD with momentum. Every contender
starts from the same weights and batch in a process of its own and must report the same initial
loss. They take turns in rounds, the others stopped; a turn during which other programs kept the
machine busy is rejected and taken again. With ``--before`` the graphgrad of another checkout
competes too. With ``--isa`` all are held to fewer instructions than this processor has. With
``--precision`` each contender competes twice: as it is, and in mixed precision. On a machine that
others use, ``--threads 1 --cpu-time`` still gives rough ratios.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from contenders import BEFORE, CONTENDERS, HALVES, INSTRUCTION_SETS, QUICK, in_precision
from field import Field, add_clock, add_pace, check_clock, chosen_pace, positive, say, some_of
from limits import verdicts
from machine import facts, machine_of, usable_cores, versions
from process import Contender, ContenderError, Stepping
from roofline import least_milliseconds, peak, peak_again
from rounds import Record, Turn, figures_of
from specs import FAMILIES, SPECS, Spec, write
from specs import QUICK as QUICK_MODELS
from table import table
from workload import Workload

import graphgrad as gg

OURS = "graphgrad"
_OURS_MODULE = CONTENDERS[OURS][0]
LOSS_TOLERANCE = 1e-4
MIXED_LOSS_TOLERANCE = 2e-2
MOST_STEPS = 100
COMPILERS = ("g++", "clang++", "c++", "cl")
HEADER = [
    "model, contender",
    "ms per step",
    "ratio",
    "roofline",
    "first step s",
    "again s",
    "first MB",
    "peak MB",
    "end MB",
    "turns",
    "load",
]


def measure(
    spec: Spec, settings: argparse.Namespace, peaks: dict[str, float] | None
) -> dict[str, Any]:
    """Compare the contenders on one model; a failed one is reported with its error.

    `peaks` are measured again while the contenders are stopped, and raised.
    """
    field = Field(chosen_pace(settings, MOST_STEPS), tell)
    with tempfile.TemporaryDirectory() as folder:
        workload = write(spec, Path(folder))
        example = list(workload.batch()[0].shape[1:])
        try:
            for name in settings.contenders:
                say(f"  {name}: first step")
                field.enter(name, partial(started, name, workload, settings))
            check_losses(field.running)
            records = field.compete()
            ours = records[OURS].median_seconds() if OURS in records else None
            least = None
            if peaks is not None:
                peaks |= peak_again(peaks, settings.threads, settings.clock)
                least = least_milliseconds(workload.proto(), peaks)
            return {
                "batch": spec.batch,
                "example": example,
                "roofline_ms": least,
                "contenders": {
                    name: figures(field.running[name], records[name], ours)
                    if name in records
                    else {"error": field.errors[name]}
                    for name in settings.contenders
                },
            }
        finally:
            field.close()


def started(name: str, workload: Workload, settings: argparse.Namespace) -> Contender:
    """Return a contender that has made its first step.

    One that keeps compiled code is started twice; the second is the one that competes.

    Raises
    ------
    ContenderError
    """
    check_compiler(name)
    tree = settings.before if name == BEFORE else None
    contenders, environment = held_to(settings.isa)
    start = partial(
        Contender,
        name,
        workload,
        settings.threads,
        contenders,
        tree,
        settings.clock,
        environment,
    )
    contender = start()
    if not _keeps_code(name):
        return contender
    cold, memory = contender.facts["first_step_seconds"], contender.memory
    contender.close()
    contender = start()
    warm = contender.facts["first_step_seconds"]
    contender.facts |= {"first_step_seconds": cold, "first_step_again_seconds": warm}
    contender.facts["first_memory"] = memory
    return contender


def held_to(isa: str | None) -> tuple[Mapping[str, tuple[str, dict[str, Any]]], Mapping[str, str]]:
    """Return the contenders and their environment, held to an instruction set if one is given."""
    if isa is None:
        return CONTENDERS, {}
    held = INSTRUCTION_SETS[isa]
    contenders = {
        name: (module, {**options, "mcpu": held.mcpu} if module == _OURS_MODULE else options)
        for name, (module, options) in CONTENDERS.items()
    }
    return contenders, held.variables


def check_compiler(name: str) -> None:
    """Raise `ContenderError` where a contender needs a compiler that is not there."""
    if "compile" in name and not any(map(shutil.which, COMPILERS)):
        raise ContenderError(f"torch.compile needs a C++ compiler: one of {', '.join(COMPILERS)}")


def _keeps_code(name: str) -> bool:
    """Return whether a contender's next process finds what this one compiles."""
    return CONTENDERS[name][0] == _OURS_MODULE or "compile" in name


def tell(name: str, turn: Turn) -> None:
    """Say what a turn took."""
    milliseconds = 1e3 * statistics.median(turn.seconds)
    say(f"  {name}: {milliseconds:.2f} ms, others kept {turn.load:.2f} cores busy")


def check_losses(running: Mapping[str, Stepping]) -> None:
    """End the benchmark unless all contenders compute the same thing."""
    losses = {name: contender.facts["initial_loss"] for name, contender in running.items()}
    first = next(iter(losses.values()), math.nan)
    if not all(
        math.isclose(first, loss, rel_tol=_loss_tolerance(name)) for name, loss in losses.items()
    ):
        raise SystemExit(f"the initial losses differ, so the times compare nothing: {losses}")


def _loss_tolerance(name: str) -> float:
    return MIXED_LOSS_TOLERANCE if name.endswith(HALVES) else LOSS_TOLERANCE


def figures(contender: Stepping, record: Record, ours: float | None) -> dict[str, Any]:
    """Return what was measured of one contender; `ours` is graphgrad's time for a step."""
    seconds = record.median_seconds()
    return {
        **contender.facts,
        "ratio_to_graphgrad": None if ours is None else seconds / ours,
        "memory": contender.memory,
        **figures_of(record),
    }


def report(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    rows, notes, includes = [], [], {}
    for name, entry in result["models"].items():
        rows.append([f"{name}, batch {entry['batch']}", *[""] * (len(HEADER) - 1)])
        for contender, measured in entry["contenders"].items():
            if "error" in measured:
                rows.append([f"  {contender}", "failed", *[""] * (len(HEADER) - 2)])
                notes.append(f"{name}: {contender} failed: {measured['error']}")
                continue
            rows.append([f"  {contender}", *_cells(measured, entry["roofline_ms"])])
            includes[contender] = f"{contender}: {measured['includes']}"
            if not measured["quiet"]:
                notes.append(f"{name}: {contender} never had the machine to itself: NOT QUIET")
    return "\n".join(
        [
            table(HEADER, rows),
            "",
            *notes,
            *includes.values(),
            *verdicts(result),
            "ratio: time over graphgrad's. roofline: time over the least that the operations, in",
            "their direct form, and the bytes of the model need. first step: import,",
            "compilation and one step.",
            "again: in a second process, which finds what the first has compiled.",
            "MB: growth of resident memory since libraries were loaded: highest in the process",
            "that compiles; highest in the process that competes, and at the end.",
            "turns: those that count, of those taken. load: cores that others kept busy, at most.",
            machine_of(result),
        ]
    )


def _cells(measured: dict[str, Any], roofline: float | None) -> list[str]:
    ratio, memory, turns = (measured[key] for key in ("ratio_to_graphgrad", "memory", "turns"))
    first = measured.get("first_memory")
    return [
        f"{measured['step_ms']:.2f}",
        "" if ratio is None else f"{ratio:.2f}",
        "" if roofline is None else f"{measured['step_ms'] / roofline:.2f}",
        f"{measured['first_step_seconds']:.1f}",
        f"{again:.1f}" if (again := measured.get("first_step_again_seconds")) else "",
        "" if first is None else f"{first['peak_growth_mb']:.0f}",
        "" if memory is None else f"{memory['peak_growth_mb']:.0f}",
        "" if memory is None else f"{memory['growth_mb']:.0f}",
        f"{len(turns)} of {measured['turns_taken']}",
        f"{max(turn['load'] for turn in turns):.2f}",
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add(
        "--models",
        type=some_of(SPECS | FAMILIES),
        default=list(QUICK_MODELS),
        help=f"of {', '.join(SPECS | FAMILIES)}; default: {', '.join(QUICK_MODELS)}",
    )
    add(
        "--contenders",
        type=some_of({name for name in CONTENDERS if name != BEFORE}),
        default=list(QUICK),
        help=f"of {', '.join(n for n in CONTENDERS if n != BEFORE)}; default: {', '.join(QUICK)}",
    )
    add("--before", type=Path, metavar="TREE", help=f"another checkout, which competes as {BEFORE}")
    add("--threads", type=positive, default=min(2, usable_cores()), help="of each contender")
    add_clock(parser)
    add_pace(parser, 7, turn_seconds=1.0, max_load=0.1, pause=5.0, most_seconds=60.0)
    add("--isa", choices=list(INSTRUCTION_SETS), help="less than this processor can do; not of tvm")
    add("--precision", choices=HALVES, help="let each compete in mixed precision, too; not tvm")
    add("--batch", type=positive, help="batch size, instead of each model's own")
    add("--width", type=float, help="multiplies all channels, instead of each model's own")
    arguments = parser.parse_args()
    if arguments.isa is not None:
        arguments.contenders = [name for name in arguments.contenders if name != "tvm"]
    if arguments.precision is not None:
        mixed = [in_precision(name, arguments.precision) for name in arguments.contenders]
        arguments.contenders += [name for name in mixed if name in CONTENDERS]
    check_contenders(parser, arguments)
    check_clock(parser, arguments)
    return arguments


def check_contenders(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End the program unless all contenders are there; that of `before` is one more."""
    if arguments.before is not None:
        if not (arguments.before / "graphgrad" / "__init__.py").is_file():
            parser.error(f"--before {arguments.before}: there is no graphgrad")
        arguments.contenders = [*arguments.contenders, BEFORE]
    uses_torch = any(name.startswith("torch") for name in arguments.contenders)
    if uses_torch and importlib.util.find_spec("torch") is None:
        parser.error(
            "torch is missing; install graphgrad's extra 'bench': pip install 'graphgrad[bench]', "
            "or leave it out with --contenders"
        )


def chosen_spec(name: str, arguments: argparse.Namespace) -> Spec:
    """Return a model's spec with what the command line says otherwise."""
    changes = {"batch": arguments.batch, "width": arguments.width}
    given = {key: value for key, value in changes.items() if value is not None}
    return dataclasses.replace((SPECS | FAMILIES)[name], **given)


def main() -> None:
    arguments = parse_arguments()
    # Without this, a terminated benchmark would leave stopped processes behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Of what the processor can do, not of what `--isa` holds the contenders to.
    peaks = peak(arguments.threads, arguments.clock) if arguments.isa is None else None
    measured = {}
    for name in arguments.models:
        say(name)
        measured[name] = measure(chosen_spec(name, arguments), arguments, peaks)
    given = {**vars(arguments), "before": arguments.before and arguments.before.name}
    settings = {key: value for key, value in given.items() if key != "json"}
    result = {
        "benchmark": "step",
        "machine": facts(),
        "versions": versions(),
        "settings": settings,
        "mcpu": str(gg.target("llvm").attrs["mcpu"]),
        "peak": peaks,
        "models": measured,
    }
    print(json.dumps(result, indent=1) if arguments.json else report(result))
    if any("error" in entry["contenders"].get(OURS, {}) for entry in measured.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
