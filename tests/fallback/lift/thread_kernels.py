"""Kernels as they are written for GPUs, and with vectors; each with what it computes."""

import numpy as np
from tvm.script.parser import tirx as T


@T.prim_func(s_tir=True)
def reversed_in_blocks(A: T.Buffer((64,), "float64"), B: T.Buffer((64,), "float64")):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            S = T.alloc_buffer((16,), "float64", scope="shared")
            L = T.alloc_buffer((1,), "float64", scope="local")
            S[tx] = A[bx * 16 + tx]
            T.tvm_storage_sync("shared")
            v = S[15 - tx]
            L[0] = v * v
            B[bx * 16 + tx] = L[0]


@T.prim_func(s_tir=True)
def launched(A: T.Buffer((60,), "float64"), B: T.Buffer((60,), "float64")):
    bx = T.launch_thread("blockIdx.x", 4)
    tx = T.launch_thread("threadIdx.x", 16)
    if bx * 16 + tx < 60:
        v: T.let = A[bx * 16 + tx]
        B[bx * 16 + tx] = v * T.exp(v)


@T.prim_func(s_tir=True)
def tiled_matmul(
    A: T.Buffer((8, 12), "float64"), B: T.Buffer((12, 8), "float64"), C: T.Buffer((8, 8), "float64")
):
    for by in T.thread_binding(2, thread="blockIdx.y"):
        for bx in T.thread_binding(2, thread="blockIdx.x"):
            for ty in T.thread_binding(4, thread="threadIdx.y"):
                for tx in T.thread_binding(4, thread="threadIdx.x"):
                    As = T.alloc_buffer((4, 4), "float64", scope="shared")
                    Bs = T.alloc_buffer((4, 4), "float64", scope="shared")
                    acc = T.alloc_buffer((1,), "float64", scope="local")
                    acc[0] = T.float64(0)
                    for k0 in range(3):
                        As[ty, tx] = A[by * 4 + ty, k0 * 4 + tx]
                        Bs[ty, tx] = B[k0 * 4 + ty, bx * 4 + tx]
                        T.tvm_storage_sync("shared")
                        for k1 in range(4):
                            acc[0] = acc[0] + As[ty, k1] * Bs[k1, tx]
                        T.tvm_storage_sync("shared")
                    C[by * 4 + ty, bx * 4 + tx] = acc[0]


@T.prim_func(s_tir=True)
def vectors(A: T.Buffer((16,), "float64"), B: T.Buffer((16,), "float64")):
    for i in range(4):
        B[T.Ramp(i * 4, 1, 4)] = A[T.Ramp(i * 4, 1, 4)] * T.Broadcast(T.float64(2), 4) + T.exp(
            A[T.Ramp(i * 4 + 3, -1, 4)]
        )


@T.prim_func(s_tir=True)
def vector_sums(A: T.Buffer((5, 8), "float64"), B: T.Buffer((8,), "float64")):
    for j in range(2):
        B[T.Ramp(j * 4, 1, 4)] = T.Broadcast(T.float64(0), 4)
        for i in range(5):
            B[T.Ramp(j * 4, 1, 4)] = B[T.Ramp(j * 4, 1, 4)] + T.max(
                A[i, T.Ramp(j * 4, 1, 4)], T.Broadcast(T.float64(0.125), 4)
            )


@T.prim_func(s_tir=True)
def tree_sum(A: T.Buffer((3, 8), "float64"), B: T.Buffer((3,), "float64")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(8, thread="threadIdx.x"):
            S = T.alloc_buffer((8,), "float64", scope="shared")
            S[tx] = A[bx, tx] * A[bx, tx]
            T.tvm_storage_sync("shared")
            if tx < 4:
                S[tx] = S[tx] + S[tx + 4]
            T.tvm_storage_sync("shared")
            if tx < 2:
                S[tx] = S[tx] + S[tx + 2]
            T.tvm_storage_sync("shared")
            if tx < 1:
                B[bx] = S[0] + S[1]


def _vectors(a):
    reverse = a.reshape(4, 4)[:, ::-1].reshape(-1)
    return [a * 2 + np.exp(reverse)]


THREADED = {
    "reversed_in_blocks": (
        reversed_in_blocks, 1, lambda a: [a.reshape(4, 16)[:, ::-1].reshape(-1) ** 2],
    ),
    "launched": (launched, 1, lambda a: [a * np.exp(a)]),
    "tiled_matmul": (tiled_matmul, 2, lambda a, b: [a @ b]),
    "vectors": (vectors, 1, _vectors),
    "vector_sums": (vector_sums, 1, lambda a: [np.maximum(a, 0.125).sum(0)]),
    "tree_sum": (tree_sum, 1, lambda a: [(a * a).sum(1)]),
}  # fmt: skip
"""Kernels, how many inputs they have, and what they compute."""
