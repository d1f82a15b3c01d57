"""CUDA source of small programs, for the tests of how it is written."""

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tvm
from tvm import relax

from graphgrad.lower.cuda.compiler import executable_sources
from graphgrad.lower.cuda.schedule import Kernel
from graphgrad.lower.pipeline import generate, lower
from graphgrad.lower.target import target

TARGET = target({"kind": "cuda", "arch": "sm_90"})

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc on the PATH")


def program(
    expression: Callable[..., Any],
    shapes: Sequence[Sequence[Any]],
    dtypes: Sequence[str],
    name: str = "main",
) -> tvm.IRModule:
    """Return a module whose one function calls a tensor expression."""
    pairs = zip(shapes, dtypes, strict=True)
    params = [
        relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(pairs)
    ]
    builder = relax.BlockBuilder()
    with builder.function(name, params):
        with tvm.target.Target(TARGET):
            result = builder.emit_te(expression, *params)
        builder.emit_func_output(result)
    return builder.get()


def cuda_source(mod: tvm.IRModule, kernels: list[Kernel] | None = None) -> str:
    """Return the source of the kernels of a module, without what stands before the first one."""
    return whole_source(mod, kernels).split('extern "C"', 1)[1]


def whole_source(mod: tvm.IRModule, kernels: list[Kernel] | None = None) -> str:
    """Return the source of a module as the compiler of CUDA gets it."""
    (source,) = executable_sources(generate(lower(mod, TARGET, kernels), TARGET))
    return source
