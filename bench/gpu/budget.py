"""Kernels, bytes and the predicted time of a training step on a GPU, which need none to be known.

    python bench/gpu/budget.py [NETWORK …] [--precision bfloat16] [--arch sm_90] [--json] [--check]
                               [--ratchet] [--calls 10]

Lowers the step of a network of `full_networks` (torch for those that its exporter writes) with
cuDNN's plans (`pip install 'graphgrad[cuda-libs]'`) and counts. A call of a kernel counts with the
launches in it; a call of cuDNN as one. Bytes: each tensor that a call reads or writes counts once,
one of which few elements are read with the 32 bytes around each; buffers between the launches of a
kernel count twice, workspaces twice. The time is the sum over calls of the largest of
bytes / 4.3 TB/s, operations / rate, and 2 us for each launch: what no kernel could beat, not what
these kernels take. `--calls` tells which kernels and calls take most of it.

`--check` exits with 1, and names what is worse than `budgets.json`, or short of a goal of the
project; `--ratchet` lowers the figures in that file to those that are reached.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tvm
from full_networks import NETWORKS
from table import table
from tvm import relax, tirx
from tvm.s_tir import SBlockRealize

import graphgrad as gg
from graphgrad.ir.kernel_structure import buffer_of, static
from graphgrad.ir.tensor import bits
from graphgrad.ir.visits import nodes_in
from graphgrad.lower import pipeline
from graphgrad.lower.cuda.library.cost import RATES, Rates, bytes_moved, seconds_by_library
from graphgrad.lower.cuda.library.devices import capability_of, profile_of
from graphgrad.lower.cuda.rows import WARP
from graphgrad.lower.cuda.tensor_cores.device import TF32, multiplied
from graphgrad.runtime.cudnn.engine import NAME
from graphgrad.runtime.cudnn.plans import Plan

RATCHET = Path(__file__).with_name("budgets.json")

GOALS = {
    "resnet50-64 bfloat16 sm_90": {"kernels": 500, "gigabytes": 23.0, "milliseconds": 7.5},
    "resnet50-256 bfloat16 sm_90": {"milliseconds": 29.0},
    "bert-base-32 bfloat16 sm_90": {"milliseconds": 14.0},
    "gpt2-4 bfloat16 sm_90": {"milliseconds": 4 * 1024 / 600_000 * 1e3},
}
"""What the project aims at."""

SECTOR = 32
"""Bytes of memory that the smallest access moves."""

_COUNTED = (tirx.For, tirx.AllocBuffer, SBlockRealize)
"""What counts once for each trip of the host's loops around it."""

SLACK = 1.01
"""How much worse than the ratchet a figure may be: fewer launches may cost a few more bytes."""


@dataclass(frozen=True)
class Call:
    """What a call of a kernel, or of cuDNN, costs.

    Attributes
    ----------
    name : str
    launches : int
    bytes : int
    seconds : float
    """

    name: str
    launches: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Budget:
    """The costs of a step, in all.

    Attributes
    ----------
    network, precision, arch : str
    calls, library_calls, kernels : int
        Calls in all, those of cuDNN among them, and launches.
    gigabytes, milliseconds : float
    """

    network: str
    precision: str
    arch: str
    calls: int
    library_calls: int
    kernels: int
    gigabytes: float
    milliseconds: float

    @property
    def key(self) -> str:
        """By which the ratchet and the goals know it."""
        return f"{self.network} {self.precision} {self.arch}"

    def figures(self) -> dict[str, float]:
        """What is ratcheted."""
        return {
            "kernels": self.kernels,
            "gigabytes": round(self.gigabytes, 3),
            "milliseconds": round(self.milliseconds, 3),
        }


def budget(network: str, precision: str, arch: str) -> tuple[Budget, list[Call]]:
    """Lower a network's training step; return its costs, and those of its calls."""
    target = gg.target({"kind": "cuda", "arch": arch})
    mod = NETWORKS[network].step(precision, arch)
    lowered = pipeline.lower(mod, target, tf32=precision == "tf32")
    profile = profile_of(arch)
    assert profile is not None
    calls = list(_calls(lowered, capability_of(profile)))
    result = Budget(
        network,
        precision,
        arch,
        len(calls),
        sum(call.name == NAME for call in calls),
        sum(call.launches for call in calls),
        sum(call.bytes for call in calls) / 1e9,
        sum(call.seconds for call in calls) * 1e3,
    )
    return result, calls


def _calls(mod: tvm.IRModule, capability: int) -> Iterator[Call]:
    """The calls of a lowered step, in order."""
    costs: dict[str, Call] = {}
    for call in nodes_in(mod["train_step"], tvm.ir.Call):
        if isinstance(call.op, relax.ExternFunc) and str(call.op.global_symbol) == NAME:
            yield _library_call(call)
        elif isinstance(call.op, tvm.ir.GlobalVar):
            name = call.op.name_hint
            if isinstance(mod[name], tirx.PrimFunc):
                if name not in costs:
                    costs[name] = _kernel_call(name, mod[name], capability)
                yield costs[name]


def _library_call(call: Any) -> Call:
    texts = (str(each.value) for each in call.args if isinstance(each, tvm.ir.StringImm))
    plan = Plan.from_json(next(texts))
    return Call(NAME, 1, bytes_moved(plan), seconds_by_library(plan, share=1.0))


def _kernel_call(name: str, func: tirx.PrimFunc, capability: int) -> Call:
    rates = RATES[capability]
    hosts = _loops_of_host(func)
    launches = sum(
        _trips(loop, hosts) for loop in nodes_in(func.body, tirx.For) if _is_launch(loop)
    )
    tensors = [parameter for parameter in func.params if hasattr(parameter.ty, "shape")]
    reads = _reads(func)
    moved = sum(
        min(_bytes(each.ty), reads.get(str(each.data), math.inf) * SECTOR) for each in tensors
    )
    root = getattr(func.body, "block", None)
    between = [] if root is None else [(buffer, 1) for buffer in root.alloc_buffers]
    between += [(a.buffer, _trips(a, hosts)) for a in nodes_in(func.body, tirx.AllocBuffer)]
    moved += 2 * sum(trips * _bytes(b) for b, trips in between if b.scope() == "global")
    computed = _operations(func) / rates.single + _seconds_on_tensor_cores(func, rates)
    launched = max(launches, 1)
    return Call(name, launched, moved, max(moved / rates.bytes, computed, launched * rates.launch))


def _is_launch(loop: Any) -> bool:
    """Whether a loop is over the blocks of a launch."""
    return loop.thread_binding is not None and str(loop.thread_binding.thread_tag) == "blockIdx.x"


def _loops_of_host(func: tirx.PrimFunc) -> list[tuple[int, list[Any]]]:
    """The trips of loops around launches, and what is in them."""
    return [
        (static(loop.extent) or 1, nodes_in(loop.body, _COUNTED))
        for loop in nodes_in(func.body, tirx.For)
        if loop.thread_binding is None and any(map(_is_launch, nodes_in(loop.body, tirx.For)))
    ]


def _trips(node: Any, hosts: Sequence[tuple[int, list[Any]]]) -> int:
    """How often the host comes to something that is in its loops."""
    return math.prod(trips for trips, inner in hosts if any(node.same_as(each) for each in inner))


def _bytes(tensor: Any) -> int:
    extents = [static(extent) or 1 for extent in tensor.shape]
    return math.prod(extents) * bits(str(tensor.dtype)) // 8


def _reads(func: tirx.PrimFunc) -> dict[str, float]:
    """How many elements a kernel reads at most of each tensor, by the name of its memory.

    Any number of what it writes.
    """
    views = {each.buffer: str(each.data) for each in nodes_in(func.body, tirx.DeclBuffer)}
    reads: Counter[str] = Counter()
    for access, runs in _accesses(func.body, 1):
        buffer = buffer_of(access)
        is_store = isinstance(access, tirx.BufferStore)
        name = views.get(buffer, str(buffer.data))
        reads[name] += math.inf if is_store else runs  # type: ignore[assignment]
    return dict(reads)


def _accesses(statement: Any, runs: float) -> Iterator[tuple[Any, float]]:
    """Yield the loads and stores of a statement, with how often each runs at most."""
    if isinstance(statement, tirx.For):
        trips = static(statement.extent)
        if trips != 0:
            yield from _accesses(statement.body, runs * (math.inf if trips is None else trips))
    elif isinstance(statement, tirx.SeqStmt):
        for each in statement.seq:
            yield from _accesses(each, runs)
    elif isinstance(statement, SBlockRealize):
        for each in filter(None, (statement.block.init, statement.block.body)):
            yield from _accesses(each, runs)
    elif isinstance(statement, tirx.IfThenElse):
        yield from ((load, runs) for load in nodes_in(statement.condition, tvm.ir.TensorLoad))
        for each in filter(None, (statement.then_case, statement.else_case)):
            yield from _accesses(each, runs)
    else:  # loads and stores; what encloses others in another way may run any number of times
        times = math.inf if hasattr(statement, "body") else runs
        accesses = (tvm.ir.TensorLoad, tirx.BufferStore)
        yield from ((each, times) for each in nodes_in(statement, accesses))


def _operations(func: tirx.PrimFunc) -> int:
    """Two for each point of the loops of a block that adds up; one for those of others."""
    total, hosts = 0, _loops_of_host(func)
    for realize in nodes_in(func.body, SBlockRealize):
        block = realize.block
        points = math.prod(static(each.dom.extent) or 1 for each in block.iter_vars)
        total += _trips(realize, hosts) * points * (2 if block.init is not None else 1)
    return total


def _seconds_on_tensor_cores(func: tirx.PrimFunc, rates: Rates) -> float:
    """The time of what warps multiply on tensor cores, in each trip of the loop over stages."""
    total, hosts = 0.0, _loops_of_host(func)
    for launch in filter(_is_launch, nodes_in(func.body, tirx.For)):
        for stages in nodes_in(launch.body, tirx.For):
            if int(stages.kind) != tirx.ForKind.SERIAL:
                continue
            for number, operations in filter(None, map(multiplied, nodes_in(stages, tvm.ir.Call))):
                warps = _threads(launch) // WARP
                done = int(launch.extent) * warps * (int(stages.extent) - 1) * operations
                total += (
                    _trips(launch, hosts) * done / (rates.tf32 if number == TF32 else rates.half)
                )
    return total


def _threads(launch: Any) -> int:
    """Threads of a block."""
    loops = [each for each in nodes_in(launch.body, tirx.For) if each.thread_binding is not None]
    return math.prod(int(each.extent) for each in loops)


def shortfalls(budgets: Sequence[Budget], ratchet: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What is worse than the ratchet, or is not in it."""
    worse = []
    for each in budgets:
        if each.key not in ratchet:
            worse.append(f"{each.key} is not in {RATCHET.name}: add it by --ratchet")
            continue
        for name, value in each.figures().items():
            if value > ratchet[each.key][name] * SLACK:
                worse.append(f"{each.key}: {value:g} {name}, of {ratchet[each.key][name]:g}")
    return worse


def short_of_goals(budgets: Sequence[Budget]) -> list[str]:
    """What is above the goals of the project."""
    return [
        f"{each.key}: {each.figures()[name]:g} {name}, the goal is {goal:g}"
        for each in budgets
        for name, goal in GOALS.get(each.key, {}).items()
        if each.figures()[name] > goal
    ]


def _ratcheted(
    budgets: Sequence[Budget], ratchet: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """The ratchet with figures lowered to those that are reached."""
    result = {key: dict(figures) for key, figures in ratchet.items()}
    for each in budgets:
        before = result.get(each.key, {})
        result[each.key] = {
            name: min(value, before.get(name, value)) for name, value in each.figures().items()
        }
    return dict(sorted(result.items()))


def text(budgets: Sequence[Budget]) -> str:
    """The table for the terminal."""
    header = ["network", "precision", "arch", "calls", "cuDNN", "kernels", "GB", "ms", "goals"]
    rows = [
        [
            each.network,
            each.precision,
            each.arch,
            *map(str, (each.calls, each.library_calls, each.kernels)),
            f"{each.gigabytes:.2f}",
            f"{each.milliseconds:.2f}",
            ", ".join(f"{value:g} {name}" for name, value in GOALS.get(each.key, {}).items()),
        ]
        for each in budgets
    ]
    return table(header, rows)


def costliest(calls: Sequence[Call], count: int = 10) -> str:
    """The kernels and calls of cuDNN that take most of a step: how often, and what one moves."""
    totals: Counter[Call] = Counter()
    times: Counter[Call] = Counter(calls)
    for call in calls:
        totals[call] += call.seconds  # type: ignore[assignment]
    return "\n".join(
        f"  {1e3 * seconds:8.3f} ms {times[call]:4d} x {call.bytes / 1e6:7.1f} MB {call.name[:90]}"
        for call, seconds in totals.most_common(count)
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted(NETWORKS)
    parser.add_argument("networks", nargs="*", default=names, help=f"of {', '.join(names)}")
    parser.add_argument("--precision", nargs="+", default=["bfloat16"])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 if something is short")
    parser.add_argument("--ratchet", action="store_true", help="write what is reached")
    parser.add_argument("--calls", type=int, default=10, help="how many of the costliest to name")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.networks) - set(names)):
        parser.error(f"there is no network {unknown[0]}; there are {', '.join(names)}")
    return arguments


def main() -> int:
    """Count; return 1 if `--check` finds something above the ratchet, or a goal."""
    arguments = _arguments()
    budgets = []
    for network in arguments.networks:
        for precision in arguments.precision:
            result, calls = budget(network, precision, arguments.arch)
            budgets.append(result)
            print(f"{result.key}\n{costliest(calls, arguments.calls)}", file=sys.stderr)
    ratchet = json.loads(RATCHET.read_text(encoding="utf-8")) if RATCHET.exists() else {}
    worse = [*shortfalls(budgets, ratchet), *short_of_goals(budgets)]
    if arguments.ratchet:
        written = json.dumps(_ratcheted(budgets, ratchet), indent=2)
        RATCHET.write_text(written + "\n", encoding="utf-8")
    if arguments.json:
        print(json.dumps({"budgets": [asdict(each) for each in budgets], "worse": worse}))
    else:
        print("\n".join([text(budgets), *(worse if arguments.check else ())]))
    return int(arguments.check and bool(worse))


if __name__ == "__main__":
    sys.exit(main())
