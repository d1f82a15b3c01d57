"""Kernels whose iterations go on from those before, written by hand."""

from tvm.script.parser import tirx as T


@T.prim_func(s_tir=True)
def running_sum(A: T.Buffer((8,), "float64"), B: T.Buffer((8,), "float64")):
    for i in range(8):
        B[i] = A[i]
    for i in range(7):
        B[i + 1] = B[i] + A[i]


@T.prim_func(s_tir=True)
def averaged(A: T.Buffer((8,), "float64"), B: T.Buffer((1,), "float64")):
    B[0] = T.float64(0)
    for i in range(8):
        B[0] = B[0] * T.float64(0.5) + A[i] * A[i]


@T.prim_func(s_tir=True)
def overwritten(A: T.Buffer((8,), "float64"), B: T.Buffer((1,), "float64")):
    for i in range(8):
        B[0] = A[i] * A[i]


@T.prim_func(s_tir=True)
def filtered(A: T.Buffer((3, 9), "float64"), B: T.Buffer((3, 9), "float64")):
    for r, i in T.grid(3, 9):
        if i < 2:
            B[r, i] = A[r, i]
        else:
            B[r, i] = A[r, i] + T.float64(0.5) * B[r, i - 1] - T.float64(0.25) * B[r, i - 2]


@T.prim_func(s_tir=True)
def backwards(A: T.Buffer((6,), "float64"), B: T.Buffer((6,), "float64")):
    for i in range(6):
        B[5 - i] = A[5 - i] * A[i]
        if i > 0:
            B[5 - i] = B[5 - i] + T.tanh(B[6 - i])


@T.prim_func(s_tir=True)
def welford(
    A: T.Buffer((4, 7), "float64"), M: T.Buffer((4,), "float64"), V: T.Buffer((4,), "float64")
):
    for r in range(4):
        mean = T.alloc_local((1,), "float64")
        square = T.alloc_local((1,), "float64")
        mean[0] = T.float64(0)
        square[0] = T.float64(0)
        for k in range(7):
            delta = A[r, k] - mean[0]
            mean[0] = mean[0] + delta / T.Cast("float64", k + 1)
            square[0] = square[0] + delta * (A[r, k] - mean[0])
        M[r] = mean[0]
        V[r] = square[0] / T.float64(7)


@T.prim_func(s_tir=True)
def online_softmax(A: T.Buffer((3, 6), "float64"), B: T.Buffer((3, 6), "float64")):
    for r in range(3):
        largest = T.alloc_local((1,), "float64")
        total = T.alloc_local((1,), "float64")
        largest[0] = T.float64(-1e30)
        total[0] = T.float64(0)
        for k in range(6):
            new = T.max(largest[0], A[r, k])
            total[0] = total[0] * T.exp(largest[0] - new) + T.exp(A[r, k] - new)
            largest[0] = new
        for k in range(6):
            B[r, k] = T.exp(A[r, k] - largest[0]) / total[0]


@T.prim_func(s_tir=True)
def recurrent_cell(
    X: T.Buffer((5, 3), "float64"),
    W: T.Buffer((3, 3), "float64"),
    Y: T.Buffer((5, 3), "float64"),
):
    h = T.alloc_buffer((3,), "float64")
    n = T.alloc_buffer((3,), "float64")
    for i in range(3):
        h[i] = T.float64(0)
    for t in range(5):
        for i in range(3):
            n[i] = X[t, i]
        for i, j in T.grid(3, 3):
            n[i] = n[i] + W[i, j] * h[j]
        for i in range(3):
            h[i] = T.tanh(n[i])
        for i in range(3):
            Y[t, i] = h[i]


@T.prim_func(s_tir=True)
def two_dimensions(A: T.Buffer((4, 5), "float64"), B: T.Buffer((4, 5), "float64")):
    for i, j in T.grid(4, 5):
        B[i, j] = A[i, j]
        if i > 0:
            B[i, j] = B[i, j] + T.float64(0.5) * B[i - 1, j]
        if j > 0:
            B[i, j] = B[i, j] + T.float64(0.25) * T.tanh(B[i, j - 1])


@T.prim_func(s_tir=True)
def smoothed_in_place(A: T.Buffer((6,), "float64"), B: T.Buffer((6,), "float64")):
    for i in range(6):
        B[i] = A[i]
    for _sweep in range(3):
        for i in range(4):
            B[i + 1] = T.float64(0.25) * (B[i] + B[i + 2]) + T.float64(0.5) * B[i + 1]


@T.prim_func(s_tir=True)
def iterated(A: T.Buffer((4,), "float64"), B: T.Buffer((4,), "float64")):
    for i in range(4):
        x = T.alloc_local((1,), "float64")
        x[0] = T.float64(1)
        for _step in range(6):
            x[0] = T.float64(0.5) * (x[0] + (T.float64(1) + A[i] * A[i]) / x[0])
        B[i] = x[0]


@T.prim_func(s_tir=True)
def triangular_solve(
    L: T.Buffer((4, 4), "float64"), R: T.Buffer((4,), "float64"), X: T.Buffer((4,), "float64")
):
    for i in range(4):
        X[i] = R[i]
        for j in range(i):
            X[i] = X[i] - L[i, j] * X[j]
        X[i] = X[i] / (T.float64(3) + L[i, i])


@T.prim_func(s_tir=True)
def last_written(
    A: T.Buffer((6,), "float64"), J: T.Buffer((6,), "int32"), B: T.Buffer((4,), "float64")
):
    for i in range(4):
        B[i] = T.float64(0)
    for i in range(6):
        B[J[i]] = A[i] * A[i]


RECURRENT = {
    running_sum: 1, averaged: 1, overwritten: 1, filtered: 1, backwards: 1, welford: 1,
    online_softmax: 1, recurrent_cell: 2, two_dimensions: 1, smoothed_in_place: 1, iterated: 1,
    triangular_solve: 2, last_written: 2,
}  # fmt: skip
"""Kernels, and how many inputs they have."""
