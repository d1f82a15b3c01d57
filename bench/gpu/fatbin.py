"""What is in CUDA machine code: the kernels and what each takes, without NVIDIA's tools.

A fat binary that is not compressed (``NVCC_APPEND_FLAGS=--no-compress``) holds ELF files, one per
architecture. Kernels are the sections ``.text.<name>``; registers and stack are the attributes of
section ``.nv.info``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_ELF = b"\x7fELF"
_REGISTERS, _STACK = 0x2F, 0x11
_WITH_PAYLOAD = 4
"""The format of an attribute that is followed by as many bytes as its size says."""


@dataclass
class Kernel:
    """A kernel in machine code; all but `registers` are bytes, `stack` and those of one thread."""

    code: int = 0
    registers: int = 0
    shared: int = 0
    stack: int = 0


def kernels(binary: bytes) -> dict[str, Kernel]:
    """Return the kernels of the first ELF file in a fat binary, by name.

    Raises
    ------
    ValueError
        The binary holds no ELF file: it is compressed, or PTX alone.
    """
    start = binary.find(_ELF)
    if start < 0:
        raise ValueError("no machine code is found in the binary; is it compressed?")
    return _kernels(binary[start:])


def _kernels(elf: bytes) -> dict[str, Kernel]:
    sections = _sections(elf)
    found = {name[6:]: Kernel(code=size) for name, (_, size) in sections.items() if _is_code(name)}
    for name, (_, size) in sections.items():
        kernel = found.get(name.removeprefix(".nv.shared."))
        if kernel is not None and name.startswith(".nv.shared."):
            kernel.shared = size
    symbols = _symbols(elf, sections)
    for attribute, symbol, value in _attributes(elf, *sections[".nv.info"]):
        kernel = found.get(symbols[symbol])
        if kernel is not None and attribute == _REGISTERS:
            kernel.registers = value
        elif kernel is not None and attribute == _STACK:
            kernel.stack = value
    return found


def _is_code(section: str) -> bool:
    return section.startswith(".text.")


def _sections(elf: bytes) -> dict[str, tuple[int, int]]:
    """Return offset and size of each section by name."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * entry) for i in range(count)]
    strings = headers[names][4]
    return {_text(elf, strings + header[0]): header[4:6] for header in headers}


def _symbols(elf: bytes, sections: dict[str, tuple[int, int]]) -> list[str]:
    offset, size = sections[".symtab"]
    strings = sections[".strtab"][0]
    entries = struct.iter_unpack("<IBBHQQ", elf[offset : offset + size])
    return [_text(elf, strings + entry[0]) for entry in entries]


def _attributes(elf: bytes, offset: int, size: int) -> list[tuple[int, int, int]]:
    """Return attribute, symbol and value of each entry that has a symbol and a value."""
    found = []
    end = offset + size
    while offset < end:
        form, attribute, length = struct.unpack_from("<BBH", elf, offset)
        offset += 4
        if form != _WITH_PAYLOAD:
            continue
        if length == 8:
            found.append((attribute, *struct.unpack_from("<II", elf, offset)))
        offset += length
    return found


def _text(elf: bytes, offset: int) -> str:
    return elf[offset : elf.index(b"\0", offset)].decode()
