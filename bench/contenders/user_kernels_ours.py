"""graphgrad: a kernel of `examples/kernels` in one of its forms, and its derived gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from user_kernel import cotangent, example_of
from workload import Workload

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.ir.arrays import to_tensor

INCLUDES = "gg.compile of gg.vjp of a call of the kernel"


def prepare(workload: Workload, threads: int, kernel: str, large: bool, form: str) -> Step:
    """Return the step, which knows what its last call gave."""
    del workload
    gg.set_threads(threads)
    return Step(kernel, large, form)


class Step:
    """A kernel's value and its gradients by all floats."""

    def __init__(self, kernel: str, large: bool, form: str):
        example, sizes = example_of(kernel, large)
        mod = gg.vjp(example.module(form, sizes))
        del mod["main"]
        self._function = relax.VirtualMachine(gg.compile(mod), tvm.cpu())["main_vjp"]
        arrays = example.arrays(sizes)
        self._names = [name for name, array in arrays.items() if array.dtype.kind == "f"]
        head = cotangent([int(n) for n in mod["main_vjp"].params[-1].ty.shape])
        self._tensors = [to_tensor(array) for array in (*arrays.values(), head)]

    def __call__(self) -> None:
        self._results: Any = self._function(*self._tensors)

    def gradients(self) -> dict[str, np.ndarray]:
        """Return the value and the gradients of the last call."""
        value, *gradients = [a for a in flat(self._results) if a is not None]
        return {"value": value, **dict(zip(self._names, gradients, strict=True))}
