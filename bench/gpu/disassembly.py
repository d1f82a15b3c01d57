"""What the instructions of CUDA kernels are: SASS by NVIDIA's disassembler, PTX by nvcc.

SASS says what the GPU executes; PTX, which still names the parameters of a kernel, how wide the
accesses of each buffer are. The disassembler is that of ``pip install 'graphgrad[cuda-sass]'``, or
one on the PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from graphgrad.lower.cuda.compiler import find_nvcc

_WHEEL_FOLDER = "nvidia/cu13/bin"
"""Where the wheels put the tools, below the packages."""

_FUNCTION = re.compile(r"^\s*Function : (\S+)", re.MULTILINE)
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+\s+)?([A-Z][A-Z0-9_]*)((?:\.\w+)*)")
_WIDTH = re.compile(r"\.(?:U|S)?(8|16|64|128)\b")

_ENTRY = re.compile(r"\.entry (\w+)\((.*?)\)(.*?)^\}", re.MULTILINE | re.DOTALL)
_PARAMETER = re.compile(r"\.param \.\w+(?: \.ptr[^,]*?)? (\w+)\s*(?:,|$)", re.MULTILINE)
_ACCESS = re.compile(
    r"(ld|st)\.global(?:\.\w+)*?(?:\.v(\d))?\.[a-z]+(\d+)\s+(?:\{[^}]*\}|%\w+)?,?\s*\[(%\w+)"
)
_ASSIGNMENT = re.compile(r"^\s*(?:@!?%\w+ )?[a-z][\w.]*\s+(%rd\d+), ([^;]*);", re.MULTILINE)
_LOADED_PARAMETER = re.compile(r"\[(\w+)(?:\+\d+)?\]")


Widths = dict[tuple[int, str], Counter[int]]
"""By position of a parameter, and ``"ld"`` or ``"st"``: how many accesses have how many bytes."""


def find_disassembler() -> str | None:
    """The path of cuobjdump; None if there is none."""
    wheel = Path(sysconfig.get_path("purelib"), _WHEEL_FOLDER, "cuobjdump")
    return str(wheel) if wheel.is_file() else shutil.which("cuobjdump")


def instructions(binary: bytes) -> dict[str, Counter[str]]:
    """The instructions of each kernel in a fat binary, as `parse_sass` counts them.

    Raises
    ------
    FileNotFoundError
        There is no disassembler.
    """
    tool = find_disassembler()
    if tool is None:
        raise FileNotFoundError("no cuobjdump: pip install 'graphgrad[cuda-sass]'")
    # It calls nvdisasm, which is beside it.
    path = os.pathsep.join([str(Path(tool).parent), os.environ.get("PATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernels.fatbin")
        file.write_bytes(binary)
        done = subprocess.run(
            [tool, "--dump-sass", file],
            capture_output=True, text=True, check=True, env={**os.environ, "PATH": path},
        )  # fmt: skip
    return parse_sass(done.stdout)


def parse_sass(text: str) -> dict[str, Counter[str]]:
    """The instructions of each kernel in the output of ``cuobjdump --dump-sass``.

    They are counted as they stand in the code, by name without modifiers, such as ``"FFMA"``; loads
    and stores of global memory also by their bits, such as ``"LDG.128"``.
    """
    _, *parts = _FUNCTION.split(text)
    return {name: Counter(_names(body)) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _names(body: str) -> Iterator[str]:
    for name, modifiers in _INSTRUCTION.findall(body):
        yield name
        if name in ("LDG", "STG"):
            # An address of 64 bits is ".E"; a width is left out where it is 32.
            width = _WIDTH.search(modifiers)
            yield f"{name}.{width[1] if width else 32}"


def accesses(source: str, arch: str) -> dict[str, Widths]:
    """How wide the accesses of each kernel's parameters are, from the PTX of CUDA source."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise FileNotFoundError("no nvcc")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernels.cu").write_text(source, encoding="utf-8")
        options = ["--ptx", "-std=c++17", f"-arch={arch}", "-o", "kernels.ptx", "kernels.cu"]
        subprocess.run([nvcc, *options], check=True, capture_output=True, cwd=folder)
        return parse_ptx(Path(folder, "kernels.ptx").read_text(encoding="utf-8"))


def parse_ptx(text: str) -> dict[str, Widths]:
    """How wide the accesses of each kernel's parameters are."""
    return {name: _widths(given, body) for name, given, body in _ENTRY.findall(text)}


def _widths(given: str, body: str) -> Widths:
    """The accesses of one kernel; each address is followed back to the parameter it begins with."""
    positions = {name: i for i, name in enumerate(_PARAMETER.findall(given))}
    origins: dict[str, int] = {}
    changed = True
    while changed:  # until nothing is new: addresses of a loop refer to those behind them
        changed = False
        for register, operands in _ASSIGNMENT.findall(body):
            loaded = _LOADED_PARAMETER.search(operands)
            origin = positions.get(loaded[1]) if loaded else None
            for operand in re.findall(r"%rd\d+", operands):
                origin = origins.get(operand) if origin is None else origin
            if origin is not None and register not in origins:
                origins[register], changed = origin, True
    widths: Widths = defaultdict(Counter)
    for direction, lanes, bits, address in _ACCESS.findall(body):
        if address in origins:
            widths[origins[address], direction][int(lanes or 1) * int(bits) // 8] += 1
    return dict(widths)
