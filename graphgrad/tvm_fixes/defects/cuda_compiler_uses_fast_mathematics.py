import os
import stat
import tempfile

import tvm
from tvm.support.nvcc import compile_cuda

from ..ledger import Defect


def shows() -> bool:
    with tempfile.TemporaryDirectory() as folder:  # of an nvcc that notes its options
        nvcc, options = os.path.join(folder, "nvcc"), os.path.join(folder, "options")
        with open(nvcc, "w") as file:
            file.write(f'#!/bin/sh\necho "$@" > {options}\nexit 1\n')
        os.chmod(nvcc, stat.S_IRWXU)
        os.environ["PATH"] = folder + os.pathsep + os.environ["PATH"]
        try:
            with tvm.target.Target({"kind": "cuda", "arch": "sm_90"}):
                compile_cuda("", target_format="fatbin", arch="sm_90", compiler="nvcc")
        except RuntimeError:
            with open(options) as file:
                return "--use_fast_math" in file.read()
    return False


DEFECT = Defect(
    title="[CUDA] nvcc is always asked for fast mathematics",
    kind="wrong result",
    happens=(
        "`compile_cuda` passes `--use_fast_math`, which approximates divisions and "
        "exponentials and flushes denormals; there is no way to say otherwise but another "
        "callback."
    ),
    expected="Exact mathematics, and an option.",
    worked_around_in=("graphgrad.lower.cuda.compiler",),
)
