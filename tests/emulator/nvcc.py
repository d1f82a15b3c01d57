"""The emulated ``nvcc``: takes the options that graphgrad gives, compiles for the host by g++.

Its output, where a fatbin would be, is a line of text with the architectures and the size, and a
shared library; the emulated driver loads it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.emulator.toolchain import KERNEL_FLAGS
from tests.emulator.translate import translate

_LEAST_CHARACTERS = 60_000
"""Of kernels in a translation unit: below, the headers dominate."""


def main() -> int:
    """Compile; return the exit status."""
    compiler, folder, headers, *options = sys.argv[1:]
    parser = argparse.ArgumentParser(prog="nvcc")
    parser.add_argument("--fatbin", action="store_true", required=True)
    parser.add_argument("-O", dest="level")
    parser.add_argument("--split-compile", type=int)
    parser.add_argument("-std")
    parser.add_argument("-gencode", required=True)
    parser.add_argument("--ftz", choices=["false"])
    parser.add_argument("--prec-div", choices=["true"])
    parser.add_argument("--prec-sqrt", choices=["true"])
    parser.add_argument("-o", type=Path, required=True, dest="output")
    parser.add_argument("source", type=Path)
    given = parser.parse_args(options)
    try:
        library = _compiled(given.source.read_text(), compiler, Path(folder), headers)
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr)
        return 1
    architectures = re.findall(r"(?:sm|compute)_\w+", given.gencode.partition("code=")[2])
    header = f"GRAPHGRAD EMULATED {','.join(architectures)} {len(library)}\n"
    given.output.write_bytes(header.encode() + library)
    return 0


def _compiled(source: str, compiler: str, folder: Path, headers: str) -> bytes:
    """Return the shared library, from the cache if the same source was compiled before."""
    kept = folder / "cache" / f"{hashlib.sha256(source.encode()).hexdigest()}.so"
    if kept.exists():
        return kept.read_bytes()
    flags = [*KERNEL_FLAGS, f"-I{headers}", "-include", str(folder / "include" / "device.h")]
    units = translate(source, os.cpu_count() or 1, _LEAST_CHARACTERS)
    with tempfile.TemporaryDirectory(dir=folder) as work:

        def compiled(number: int) -> str:
            text, binary = Path(work, f"{number}.cpp"), Path(work, f"{number}.o")
            text.write_text(units[number])
            _run([compiler, *flags, "-c", str(text), "-o", str(binary)])
            return str(binary)

        with ThreadPoolExecutor() as pool:
            objects = list(pool.map(compiled, range(len(units))))
        library = Path(work, "kernels.so")
        # Each part holds the device functions that the source begins with.
        link = ["-shared", "-Wl,-Bsymbolic", "-Wl,--allow-multiple-definition"]
        _run([compiler, *link, *objects, "-o", str(library)])
        shutil.move(library, kept)
    return kept.read_bytes()


def _run(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True)


if __name__ == "__main__":
    sys.exit(main())
