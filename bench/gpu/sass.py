"""What our CUDA kernels are made of, and whether that is what memory-bound kernels need. No GPU.

    python bench/gpu/sass.py [MODEL …] [--dtype float32] [--own] [--arch sm_90] [--check]
                             [--json FILE]

Compiles a model's training step and disassembles it. Needs nvcc, and NVIDIA's disassembler
(``pip install 'graphgrad[cuda-sass]'``). A model is one of `full_networks`, as `train_step`
compiles it, or a family of the compile matrix, at small width and batch 4. `--own` leaves
contractions to kernels of ours, as where cuDNN is not installed.

Of the bytes of global memory that maps and reductions move in a step, it tells how many move in
accesses of 128 bits. A tensor counts once for each kernel that reads or writes it, with the widths
of the accesses that the kernel has of it, as PTX shows them. `--check` exits with 1 and names each
kernel that falls short: that spills registers or computes in float64 in a program without float64,
that reduces rows without shuffles, that contracts in low precision without tensor cores, or, if
less than 95 % of the bytes move in 128-bit accesses, one that moves many others.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import disassembly
import fatbin
import paths  # noqa: F401 (where `table` is found)
import tvm
from cell import TRAINING, program
from families import families
from full_networks import NETWORKS
from table import table
from tvm import relax, tirx
from tvm.tirx.build import split_host_device_mods

import graphgrad as gg
from graphgrad.ir.kernel_structure import stages, static, uses, volume
from graphgrad.ir.tensor import bits
from graphgrad.ir.visits import nodes_in
from graphgrad.lower import pipeline
from graphgrad.lower.cuda.column_tiles import arrives_last
from graphgrad.lower.cuda.compiler import executable_sources, machine_code
from graphgrad.lower.cuda.lowering import PIPELINE
from graphgrad.lower.cuda.reduction import along_terms
from graphgrad.lower.cuda.schedule import Kernel as Schedule
from graphgrad.lower.cuda.tensor_cores.tile import MIN_EXTENT
from graphgrad.lower.kernels.contraction import operands, reuses_operands
from graphgrad.tvm_fixes.hooks import tir_passes

WIDE = 16
"""Bytes of the widest access that a thread has."""

MIN_WIDE_SHARE = 0.95
"""Of the bytes that maps and reductions move."""

MIN_ROW_TERMS = 64
"""Terms from which on a reduction along memory is worth the lanes of a warp."""

_MAX_LISTED = 8
"""Kernels with narrow accesses that are named."""

_MANY = 1 << 20
"""What an unknown number of trips is taken for."""

_WIDTHS = (8, 16, 32, 64, 128)
_DOUBLES = ("DADD", "DMUL", "DFMA")
_TENSOR_CORES = ("HMMA", "HGMMA")
_SPILLS = ("LDL", "STL")

KINDS = CONTRACTION, MAP, REDUCTION, HANDMADE = "contraction", "map", "reduction", "handmade"


@dataclass
class Moved:
    """What a kernel moves of one tensor in one launch."""

    name: str
    bytes: int
    direction: str
    wide: float


@dataclass
class Kernel:
    """A kernel of a step.

    Attributes
    ----------
    name, function : str
        Of the kernel, and of the PrimFunc that launches it.
    kind : str
        One of `KINDS`.
    calls : int
        In one step.
    moved : list of Moved
    counts : dict of str to int
        Its instructions.
    registers : int
        Of a thread.
    threads : int
    """

    name: str
    function: str
    kind: str
    calls: int
    moved: list[Moved]
    counts: dict[str, int]
    registers: int
    threads: int

    def number(self, *names: str) -> int:
        return sum(self.counts.get(name, 0) for name in names)

    @property
    def bytes(self) -> int:
        """Bytes that it moves in a step, each tensor once."""
        return self.calls * sum(tensor.bytes for tensor in self.moved)

    @property
    def narrow_bytes(self) -> float:
        """Those of them that move in accesses of less than 128 bits."""
        return self.calls * sum(t.bytes * (1 - t.wide) for t in self.moved)


@dataclass
class Step:
    """A training step as machine code.

    Attributes
    ----------
    model, dtype, arch : str
    kernels : list of Kernel
    row_functions, tensor_functions : set of str
        Functions with long reductions along memory, and with contractions for tensor cores.
    """

    model: str
    dtype: str
    arch: str
    kernels: list[Kernel]
    row_functions: set[str] = field(default_factory=set)
    tensor_functions: set[str] = field(default_factory=set)

    @property
    def memory_bound(self) -> list[Kernel]:
        """The maps and reductions of ours."""
        return [k for k in self.kernels if k.kind in (MAP, REDUCTION)]

    @property
    def wide_share(self) -> float:
        """How much of what maps and reductions move moves in 128-bit accesses."""
        total = sum(kernel.bytes for kernel in self.memory_bound)
        return 1 - sum(kernel.narrow_bytes for kernel in self.memory_bound) / max(total, 1)


def compiled_step(model: str, dtype: str, arch: str, libraries: bool = True) -> Step:
    """Compile a model's training step and take it apart."""
    target = gg.target({"kind": "cuda", "arch": arch})
    schedules: list[Schedule] = []
    tf32 = dtype == "tf32"
    mod = _program(model, dtype, arch)
    lowered = pipeline.lower(mod, target, schedules, libraries=libraries, tf32=tf32)
    functions = dict(_device_functions(lowered, target))
    executable = pipeline.generate(lowered, target)
    calls = Counter(re.findall(r"^  call +(\S+)", executable.as_text(), re.MULTILINE))
    by_name = {schedule.name: schedule for schedule in schedules}
    kernels = [
        kernel
        for source in executable_sources(executable)
        for kernel in _kernels(source, arch, functions, calls, by_name)
    ]
    given = {s.name: s.given for s in schedules if s.given is not None}
    return Step(
        model,
        dtype,
        arch,
        kernels,
        {name for name, func in given.items() if _reduces_rows(func)},
        {name for name, func in given.items() if _is_for_tensor_cores(func, tf32)},
    )


def _program(model: str, dtype: str, arch: str) -> tvm.IRModule:
    if model in NETWORKS:
        return NETWORKS[model].step(dtype, arch)
    return program(families()[model], TRAINING, dtype, 4)


def _device_functions(
    mod: tvm.IRModule, target: tvm.target.Target
) -> Iterator[tuple[str, tirx.PrimFunc]]:
    """Yield the functions of the GPU by name, as they are when TVM has lowered them."""
    functions = {n: f for n, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    kernels = relax.transform.AttachGlobalSymbol()(tvm.IRModule(functions))
    kernels = tirx.transform.BindTarget(target.with_host(tvm.target.Target("llvm")))(kernels)
    for device in split_host_device_mods(tir_passes(PIPELINE)[0](kernels))[1].values():
        yield from ((name.name_hint, func) for name, func in device.functions.items())


def _kernels(
    source: str,
    arch: str,
    functions: Mapping[str, tirx.PrimFunc],
    calls: Counter[str],
    schedules: Mapping[str, Schedule],
) -> Iterator[Kernel]:
    """Yield the kernels of CUDA source that the step calls."""
    binary = machine_code(source, arch)
    widths = disassembly.accesses(source, arch)
    weights = fatbin.kernels(binary)
    for name, counts in disassembly.instructions(binary).items():
        function = re.sub(r"_kernel(_\d+)?$", "", name)
        if not calls[function]:
            continue
        yield Kernel(
            name,
            function,
            _kind(functions[name], schedules.get(_scheduled_name(function)), counts),
            calls[function],
            list(_moved(functions[name], widths[name])),
            dict(counts),
            weights[name].registers,
            _threads(functions[name]),
        )


def _kind(func: tirx.PrimFunc, schedule: Schedule | None, counts: Counter[str]) -> str:
    """What a kernel does; one that a pass has made of scheduled ones has no schedule."""
    if schedule is not None and schedule.rule in ("parallel", "serial"):
        return HANDMADE
    if any(map(arrives_last, nodes_in(func.body, tvm.ir.Call))):
        return REDUCTION  # Of columns: its threads combine what they have in shared memory.
    if (counts["LDS"] or counts["LDSM"]) and _loops(func):
        return CONTRACTION  # Maps by tiles in shared memory have no loops.
    return REDUCTION if counts["SHFL"] or _loops(func) else MAP


def _loops(func: tirx.PrimFunc) -> list[Any]:
    """The loops of a thread of a kernel; those over lanes are straight code by now."""
    loops = nodes_in(func.body, tirx.For)
    return [each for each in loops if int(each.kind) == tirx.ForKind.SERIAL]


def _threads(func: tirx.PrimFunc) -> int:
    """The threads of a kernel."""
    return math.prod(
        int(launch.value)
        for launch in nodes_in(func.body, tirx.AttrStmt)
        if launch.attr_key == "thread_extent"
    )


def _scheduled_name(function: str) -> str:
    """The name of a PrimFunc before `donate` made it one that works in place."""
    return function.removesuffix("_in_place")


def _moved(func: tirx.PrimFunc, widths: disassembly.Widths) -> Iterator[Moved]:
    """Yield what a kernel moves: each tensor once as it is read, and once as it is written.

    It moves no more of a tensor than the accesses of all its threads, in all trips of their loops.
    """
    runs = _threads(func) * math.prod(static(each.extent) or _MANY for each in _loops(func))
    sizes = {
        declared.data: _size(declared.buffer)
        for declared in nodes_in(func.body, tirx.DeclBuffer)
        if declared.buffer.scope() == "global"
    }
    for (position, direction), counts in sorted(widths.items()):
        total = sum(width * count for width, count in counts.items())
        wide = counts[WIDE] * WIDE / total
        param = func.params[position]
        reached = min(sizes[param], runs * total)
        yield Moved(str(param.name), reached, direction, wide)


def _size(buffer: Any) -> int:
    """The size of a buffer in bytes."""
    return math.prod(map(int, buffer.shape)) * bits(str(buffer.dtype)) // 8


def _reduces_rows(func: tirx.PrimFunc) -> bool:
    """Whether a PrimFunc, not scheduled yet, has a long reduction along memory."""
    return any(
        stage.reduced
        and not reuses_operands(stage)
        and volume(stage.reduced) >= MIN_ROW_TERMS
        and along_terms(stage)
        for stage in stages(func) or []
    )


def _is_for_tensor_cores(func: tirx.PrimFunc, tf32: bool) -> bool:
    """Whether a PrimFunc, not scheduled yet, has a contraction of numbers that tensor cores take.

    Its factors share the terms, and each has rows or columns of its own.
    """
    numbers = ("bfloat16", "float16", *(("float32",) if tf32 else ()))
    for stage in stages(func) or []:
        pair = operands(stage)
        if pair is None or not all(str(load.source.dtype) in numbers for load in pair):
            continue
        along = [(axis, [uses(load, axis.var) > 0 for load in pair]) for axis in stage.axes]
        own = ([a for a, used in along if used == kind] for kind in ([True, False], [False, True]))
        shared = [axis for axis, used in along if axis.reduced and all(used)]
        if all(volume(axes) >= MIN_EXTENT for axes in (*own, shared)):
            return True
    return False


def shortfalls(step: Step) -> list[str]:
    """What falls short of what memory-bound kernels need, in words."""
    found = []
    for kernel in step.kernels:
        if kernel.kind != HANDMADE and (spills := kernel.number(*_SPILLS)):
            found.append(f"{kernel.name} spills: {spills} accesses of local memory")
        # One thread computes a number of the step, such as the count of updates.
        counts = step.dtype != "float64" and kernel.threads > 1
        if counts and (doubles := kernel.number(*_DOUBLES)):
            found.append(f"{kernel.name} computes in float64: {doubles} instructions")
    multiplying = {kernel.function for kernel in step.kernels if kernel.number(*_TENSOR_CORES)}
    shuffling = {kernel.function for kernel in step.kernels if kernel.number("SHFL")}
    called = {kernel.function for kernel in step.kernels}
    for function in sorted(called - shuffling):
        if _scheduled_name(function) not in step.row_functions:
            continue
        found.append(f"{function} reduces rows without shuffles")
    found += [
        f"{function} contracts in {step.dtype} without tensor cores"
        for function in sorted(called - multiplying)
        if _scheduled_name(function) in step.tensor_functions
    ]
    if step.wide_share < MIN_WIDE_SHARE:
        narrow = sorted(step.memory_bound, key=lambda kernel: -kernel.narrow_bytes)
        found += [
            f"{kernel.name} moves {kernel.narrow_bytes / 1e6:.1f} MB in narrow accesses"
            for kernel in narrow[:_MAX_LISTED]
            if kernel.narrow_bytes
        ]
    return found


def text(step: Step) -> str:
    """The kernels of a step by kind, as a table."""
    header = [
        "kind", "kernels", "launches", "GB", "128-bit", *(f"LDG.{n}" for n in _WIDTHS),
        *(f"STG.{n}" for n in _WIDTHS), "SHFL", "spills", "float64", "tensor cores", "registers",
    ]  # fmt: skip
    return table(header, [_row(kind, step) for kind in KINDS])


def _row(kind: str, step: Step) -> list[str]:
    kernels = [kernel for kernel in step.kernels if kernel.kind == kind]
    total = sum(kernel.bytes for kernel in kernels)
    share = 1 - sum(kernel.narrow_bytes for kernel in kernels) / max(total, 1)
    names = [
        *((f"{access}.{width}",) for access in ("LDG", "STG") for width in _WIDTHS),
        ("SHFL",), _SPILLS, _DOUBLES, _TENSOR_CORES,
    ]  # fmt: skip
    return [
        kind,
        str(len(kernels)),
        str(sum(kernel.calls for kernel in kernels)),
        f"{total / 1e9:.2f}",
        f"{share:.1%}",
        *(str(sum(kernel.number(*group) for kernel in kernels)) for group in names),
        str(max((kernel.registers for kernel in kernels), default=0)),
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = ["resnet18-64", "resnet50-64", "encoder-64"]
    parser.add_argument("models", nargs="*", default=default, metavar="MODEL")
    parser.add_argument("--dtype", default="float32", help="of a family, or a network's precision")
    parser.add_argument("--own", action="store_true", help="contractions by kernels of ours alone")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--check", action="store_true", help="exit with 1 if something falls short")
    parser.add_argument("--json", type=Path, help="a file for all that is found")
    return parser.parse_args()


def main() -> int:
    """Disassemble; return 1 if something is to be checked and falls short."""
    arguments = _arguments()
    # Only the parts of a binary that is not compressed can be told.
    os.environ["NVCC_APPEND_FLAGS"] = "--no-compress"
    steps = [
        compiled_step(model, arguments.dtype, arguments.arch, not arguments.own)
        for model in arguments.models
    ]
    missing = {step.model: shortfalls(step) for step in steps}
    for step in steps:
        print(f"{step.model} {step.dtype} {step.arch}")
        print(text(step))
        print(f"of maps and reductions {step.wide_share:.1%} of the bytes move in 128-bit accesses")
        print("\n".join(missing[step.model]))
    if arguments.json:
        found = [
            {"shortfalls": missing[step.model], "wide_share": step.wide_share, **_plain(step)}
            for step in steps
        ]
        arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return int(arguments.check and any(missing.values()))


def _plain(step: Step) -> dict[str, Any]:
    return {
        **asdict(step),
        **{name: sorted(getattr(step, name)) for name in ("row_functions", "tensor_functions")},
    }


if __name__ == "__main__":
    sys.exit(main())
