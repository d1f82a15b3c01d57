"""One cell of the compile matrix: a program of a model, compiled for one architecture."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import fatbin
import tvm
from families import Family

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.write import write_program
from graphgrad.lower import pipeline
from graphgrad.lower.cuda.compiler import executable_sources, machine_code
from graphgrad.train.forward import FORWARD, ResolvedLoss, inline_model
from graphgrad.train.inputs import bind_shapes, input_types, shapes_of
from graphgrad.train.update import build_step

COMPILED, FAILED = "compiled", "failed"
TRAINING, INFERENCE = "training", "inference"
FORMS = (TRAINING, INFERENCE)
PARTS = ("transform", "lower", "generate", "nvcc")

_INSTRUCTIONS = "vm."
"""Begins the names of the functions that the virtual machine itself brings."""


@dataclass
class Cell:
    """What came of one program.

    Attributes
    ----------
    family, form, dtype, arch : str
        What was compiled: the training step or the inference form.
    status, reason : str
        Compiled, or why not.
    calls : int
        Calls of kernels in one run of the program.
    kernels : int
        PrimFuncs, those that are alike counted once.
    functions : int
        In the machine code: a PrimFunc of several stages launches one function after another.
    rules : dict of str to int
        How many PrimFuncs each rule took.
    refused : dict of str to int
        By rule and error: attempts that a rule began and could not finish.
    host : list of str
        Functions that the program calls and that are not in the machine code. Must be empty.
    seconds : dict of str to float
        Of processor time, for ``transform`` (import, gradient, update), ``lower`` (legalize,
        fuse, schedule and check), ``generate`` (CUDA source and host module) and ``nvcc``.
    source_bytes, code_bytes : int
        Of the CUDA source, and of the instructions in the machine code.
    registers, stack, shared : int
        The most that a kernel takes: registers and bytes of stack of a thread, bytes of a block.
    """

    family: str
    form: str
    dtype: str
    arch: str
    status: str = COMPILED
    reason: str = ""
    calls: int = 0
    kernels: int = 0
    functions: int = 0
    rules: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    host: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    source_bytes: int = 0
    code_bytes: int = 0
    registers: int = 0
    stack: int = 0
    shared: int = 0


def compile_cell(family: Family, form: str, dtype: str, arch: str, batch: int) -> Cell:
    """Compile a program; what goes wrong is in the cell."""
    cell = Cell(family.name, form, dtype, arch)
    try:
        _fill(cell, family, batch)
    except Exception as error:  # the matrix goes on, whatever a cell runs into
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        cell.status = FAILED
        cell.reason = f"{type(error).__name__}: {' '.join(lines)[:600]}"
    return cell


def program(family: Family, form: str, dtype: str, batch: int) -> tvm.IRModule:
    """Return the Relax module of a family's training step or inference form."""
    model = family.model(dtype)
    inputs, _ = family.batch(batch, dtype)
    given = {name: to_tensor(array) for name, array in inputs.items()}
    bind_shapes(given, input_types(model))
    shapes = shapes_of(given)
    if form == INFERENCE:
        forward = inline_model(model, False).forward(ResolvedLoss(model, None), shapes)
        return write_program(forward.program, FORWARD)
    loss = ResolvedLoss(model, family.loss)
    forward = inline_model(model, True, family.rules).forward(loss, shapes)
    return build_step(forward, model.trainable(), gg.optim.SGD(0.1, momentum=0.9))


def _fill(cell: Cell, family: Family, batch: int) -> None:
    with _timed(cell, "transform"):
        mod = program(family, cell.form, cell.dtype, batch)
    target = gg.target({"kind": "cuda", "arch": cell.arch})
    records: list[Any] = []
    with _timed(cell, "lower"):
        lowered = pipeline.lower(mod, target, records)
    cell.kernels = len(records)
    cell.rules = dict(Counter(record.rule for record in records))
    cell.refused = dict(
        Counter(
            f"{rule}: {why}"
            for record in records
            for rule, why in record.refused
            if why != "another structure"
        )
    )
    with _timed(cell, "generate"):
        executable = pipeline.generate(lowered, target)
    sources = executable_sources(executable)
    cell.source_bytes = sum(map(len, sources))
    with _timed(cell, "nvcc"):
        binaries = [machine_code(source, cell.arch) for source in sources]
    _weigh(cell, binaries)
    declared = {name for source in sources for name in _device_functions(source)}
    _check(cell, executable, declared, binaries)


def _weigh(cell: Cell, binaries: list[bytes]) -> None:
    kernels = [kernel for binary in binaries for kernel in fatbin.kernels(binary).values()]
    cell.functions = len(kernels)
    cell.code_bytes = sum(kernel.code for kernel in kernels)
    cell.registers = max((kernel.registers for kernel in kernels), default=0)
    cell.stack = max((kernel.stack for kernel in kernels), default=0)
    cell.shared = max((kernel.shared for kernel in kernels), default=0)


def _check(cell: Cell, executable: Any, declared: set[str], binaries: list[bytes]) -> None:
    """Look in the executable itself for what does not run on the device."""
    present = {name for binary in binaries for name in fatbin.kernels(binary)}
    on_device = {re.sub(r"_kernel(_\d+)?$", "", name) for name in present}
    called = re.findall(r"^  call +(\S+)", executable.as_text(), re.MULTILINE)
    own = [name for name in called if not name.startswith(_INSTRUCTIONS)]
    cell.calls = len(own)
    cell.host = sorted(set(own) - on_device)
    missing = sorted(declared - present)
    if cell.host:
        cell.status = FAILED
        cell.reason = f"on the host: {', '.join(cell.host)}"
    elif missing:
        cell.status = FAILED
        cell.reason = f"in the source, not in the machine code: {', '.join(missing)}"


def _device_functions(source: str) -> Iterator[str]:
    """Yield the names of the kernels that CUDA source defines."""
    found = re.finditer(r"__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(", source)
    return (match[1] for match in found)


@contextlib.contextmanager
def _timed(cell: Cell, part: str) -> Iterator[None]:
    """Write down how much processor time a part of the work takes.

    The time of the processor, that of child processes included, says the same on a busy machine.
    """
    start = sum(os.times()[:4])
    yield
    cell.seconds[part] = sum(os.times()[:4]) - start
