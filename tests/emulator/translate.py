"""From CUDA source to C++ that the host compiler takes, with a table of the kernels in it.

The source stays as it is, line by line, but for the storage of shared memory and inline PTX. What
it calls is supplied by ``device.h``; what is appended tells the emulated driver how to launch each
kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s*(?:__launch_bounds__\((\d+)[^)]*\))?\s*(\w+)\s*\('
)
_PREPROCESSOR = re.compile(r"^[ \t]*#(?:.*\\\n)*.*", re.MULTILINE)
_SYNCHRONIZES = re.compile(
    r"\b(__syncthreads(?:_or)?|__syncwarp|__activemask|__shfl\w*_sync|ptx::\w+_sync_\w+)\b"
)
_ASSEMBLY = re.compile(r"\basm(?:\s+volatile)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPERAND = re.compile(r'"[^"]*"\s*\(')
_FUNCTION = re.compile(r"\b(\w+)\s*\([^()]*\)\s*\{")
_ALIGNED = r"(?:(?:__align__|alignas)\(\d+\)\s*)?"
_DYNAMIC_SHARED = re.compile(rf"extern\s+__shared__\s+{_ALIGNED}([\w ]+?)\s+(\w+)\s*\[\s*\]\s*;")
_SHARED = re.compile(rf"__shared__\s+{_ALIGNED}([\w ]+?)\s+\w+\s*((?:\[[^\]]+\])*)\s*;")

_MOST_SHARED_BYTES = 48 * 1024
"""Shared memory that a kernel may declare; the CUDA toolchain refuses more."""


@dataclass(frozen=True)
class _Kernel:
    name: str
    most_threads: int
    start: int  # of its definition in the source
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def translate(source: str, most_units: int, least_characters: int) -> list[str]:
    """Return the source as one or more translation units; each has all that is not a kernel.

    Parameters
    ----------
    source : str
        CUDA C++.
    most_units : int
        Into how many it may be cut, to be compiled at once.
    least_characters : int
        Of the kernels in a unit.
    """
    source = _with_instructions_as_calls(source)
    kernels = _kernels(source)
    common, cursor = [], 0
    for kernel in kernels:
        common.append(source[cursor : kernel.start])
        cursor = kernel.end
    head = "".join([*common, source[cursor:]])
    synchronizes = _synchronizing(_PREPROCESSOR.sub("", head))
    return [
        "\n".join([head, *(_translated(source, kernel, synchronizes) for kernel in part)])
        for part in _parts(kernels, most_units, least_characters)
    ]


def _with_instructions_as_calls(source: str) -> str:
    """Return the source with a call in the place of each instruction of inline PTX.

    The function is named after the instruction, dots as underscores; ``device.h`` has those that
    are known. Its arguments are the operands in the order in which the instruction has them, once
    each.
    """
    parts, cursor = [], 0
    for match in _ASSEMBLY.finditer(source):
        end = _closing(source, match.end(), "()")
        body = source[match.end() : end - 1]
        template = "".join(_STRING.findall(body[: body.index(":")]))
        operands = [
            body[at.end() : _closing(body, at.end(), "()") - 1]
            for at in _OPERAND.finditer(body, body.index(":"))
        ]
        name = re.sub(r"\W+", "_", template.split()[0])
        order = dict.fromkeys(int(number) for number in re.findall(r"%(\d+)", template))
        arguments = ", ".join(operands[number] for number in order)
        call = f"emulator::ptx::{name}({arguments})"
        parts += [
            source[cursor : match.start()],
            call,
            "\n" * source.count("\n", match.start(), end),
        ]
        cursor = end
    return "".join([*parts, source[cursor:]])


def _synchronizing(head: str) -> re.Pattern[str]:
    """Return what a kernel that synchronizes has in it: by itself, or by a function of `head`."""
    functions = {
        match[1]: head[match.end() : _closing(head, match.end(), "{}")]
        for match in _FUNCTION.finditer(head)
    }
    found = _SYNCHRONIZES
    while names := [name for name, body in functions.items() if found.search(body)]:
        found = re.compile("|".join([found.pattern, *(rf"\b{name}\b" for name in names)]))
        functions = {name: body for name, body in functions.items() if name not in names}
    return found


def _kernels(source: str) -> list[_Kernel]:
    found = []
    for match in _KERNEL.finditer(source):
        body = re.compile(r"[^)]*\)\s*\{").match(source, match.end())
        if body:
            end = _closing(source, body.end(), "{}")
            found.append(_Kernel(match[2], int(match[1] or 0), match.start(), end))
    return found


def _closing(source: str, start: int, pair: str) -> int:
    """Return the position behind the brace that closes one of the pair opened before `start`."""
    depth = 1
    for match in re.compile(f"[{re.escape(pair)}]").finditer(source, start):
        depth += 1 if match[0] == pair[0] else -1
        if not depth:
            return match.end()
    return len(source)


def _parts(kernels: list[_Kernel], most: int, least_characters: int) -> list[list[_Kernel]]:
    """Return the kernels in parts of about the same size."""
    total = sum(kernel.size for kernel in kernels)
    parts: list[list[_Kernel]] = [[] for _ in range(max(1, min(most, total // least_characters)))]
    sizes = [0] * len(parts)
    for kernel in sorted(kernels, key=lambda kernel: -kernel.size):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(kernel)
        sizes[smallest] += kernel.size
    return parts


def _translated(source: str, kernel: _Kernel, synchronizing: re.Pattern[str]) -> str:
    """Return a kernel's definition and its entry in the table; both keep the source's lines."""
    text = source[kernel.start : kernel.end]
    text = _DYNAMIC_SHARED.sub(
        r"\1* \2 = reinterpret_cast<\1*>(emulator::coordinates.dynamic_shared);", text
    )
    arrays = [f"sizeof({kind}{extents})" for kind, extents in _SHARED.findall(text)]
    section = f"shared_{kernel.name}"
    storage = f'__attribute__((section("{section}"), used)) static'
    text = re.sub(r"\b__shared__\b", storage, text)
    synchronizes = bool(synchronizing.search(text))
    size = " + ".join(arrays) or "0"
    bounds = [f"__start_{section}", f"__stop_{section}"] if arrays else ["nullptr", "nullptr"]
    declared = [
        f'extern "C" unsigned char {bound}[] __attribute__((visibility("hidden")));'
        for bound in bounds
        if arrays
    ]
    line = source.count("\n", 0, kernel.start) + 1
    entry = ", ".join(
        [kernel.name, str(synchronizes).lower(), str(kernel.most_threads), size, *bounds]
    )
    return "\n".join(
        [
            f'#line {line} "kernels.cu"',
            text,
            f"static_assert({size} <= {_MOST_SHARED_BYTES}, "
            f"\"Entry function '{kernel.name}' uses too much shared data\");",
            *declared,
            f"EMULATED_KERNEL({entry})",
            "",
        ]
    )
