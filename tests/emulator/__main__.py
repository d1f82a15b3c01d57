"""Run a command where an emulated GPU stands in for a real one.

    python -m tests.emulator python -m pytest tests/cuda

TVM's own CUDA runtime finds emulated libraries (``libcuda.so.1``, ``libcudart.so.13``) in place of
NVIDIA's, and ``nvcc`` is a script that compiles CUDA C++ for the host. So what runs is the program
that a GPU would run, from the same source, launch by launch.

What it finds: wrong values, kernels that read memory never written (it holds NaN), accesses outside
an allocation (when they write) or outside a local or shared array, host code that touches device
memory and kernels that are given host memory, barriers that only some threads reach, limits of a
launch, memory that is freed twice. ``GRAPHGRAD_EMULATOR_ORDER=reverse`` runs the threads and blocks
backwards: results that differ show a race.

What it does not: anything about time; races that neither order shows, since memory is sequentially
consistent and a thread runs on until it waits; reads outside an allocation that land in its guard
zone give NaN, others within TVM's pools nothing; the values of CUDA's own mathematical functions
(those of the host are used, and products are not fused with sums); conversions of floats that no
integer holds; inline PTX but for what `device.h` has of it (products of tensor cores are rounded
once, which a GPU does not promise), streams that overlap and clusters. Graphs are recorded from a
stream and replayed; what cannot be recorded is refused.

Environment variables: ``GRAPHGRAD_EMULATOR_MEMORY`` (bytes of the device; 8 GiB),
``GRAPHGRAD_EMULATOR_CAPABILITY`` (``9.0``), ``GRAPHGRAD_EMULATOR_DEVICES`` (1; 0: none).
Errors come at once, as with ``CUDA_LAUNCH_BLOCKING=1``; after a fault of a kernel every call fails,
as on a real device.
"""

import os
import sys

from tests.emulator.toolchain import MissingToolError, environment

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m tests.emulator <command> [argument ...]")
    try:
        environ = environment()
    except MissingToolError as error:
        sys.exit(f"no emulated GPU: {error}")
    os.execvpe(sys.argv[1], sys.argv[1:], environ)
