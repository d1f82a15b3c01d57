"""Kernels that change their arguments, as kernels that do not."""

import numpy as np
import tvm
from tvm.script.parser import tirx as T

from graphgrad.fallback.kernels.in_place import make_out_of_place


@T.prim_func(s_tir=True)
def moved(A: T.Buffer((4,), "float64"), B: T.Buffer((4,), "float64"), C: T.Buffer((4,), "float64")):
    for i in range(4):
        C[i] = A[i] * B[i]
        A[i] = A[i] + B[i]


def test_arguments_are_left_as_they_are():
    pure = make_out_of_place(moved, [0, -1])
    generator = np.random.default_rng(0)
    a, b = generator.random(4), generator.random(4)
    tensors = [tvm.runtime.tensor(array) for array in (a, b, np.zeros(4), np.zeros(4))]
    tvm.compile(pure.with_attr("global_symbol", "moved"), "llvm")(*tensors)
    for tensor, expected in zip(tensors, (a, b, a + b, a * b), strict=True):
        np.testing.assert_array_equal(tensor.numpy(), expected)
