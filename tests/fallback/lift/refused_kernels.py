"""Kernels that no tensor expressions stand for, each with the reason that its error gives."""

from tvm.script.parser import tirx as T


@T.prim_func(s_tir=True)
def searched(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    k = T.alloc_local((1,), "int32")
    k[0] = 0
    with T.sblock("search"):
        while k[0] < 8:
            B[k[0]] = A[k[0]]
            k[0] = k[0] + 1


@T.prim_func(s_tir=True)
def called(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    with T.sblock("search"):
        T.evaluate(T.call_extern("int32", "secret", T.address_of(A[0]), T.address_of(B[0])))


@T.prim_func(s_tir=True)
def exchanged(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    with T.sblock("search"):
        for tx in T.thread_binding(8, thread="threadIdx.x"):
            S = T.alloc_buffer((9,), "float32", scope="shared")
            S[tx] = A[tx]
            S[tx + 1] = S[tx] * S[tx + 1]
            B[tx] = S[tx]


@T.prim_func(s_tir=True)
def reversed_axis(A: T.Buffer((8,), "float32"), B: T.Buffer((1,), "float32")):
    for i in range(8):
        with T.sblock("search"):
            vi = T.axis.reduce(8, 7 - i)
            with T.init():
                B[0] = T.float32(0)
            B[0] = B[0] + A[vi]


@T.prim_func(s_tir=True)
def growing(A: T.Buffer((8,), "float32"), N: T.Buffer((1,), "int32"), B: T.Buffer((1,), "float32")):
    with T.sblock("search"):
        B[0] = T.float32(1)
        for i in range(N[0]):
            B[0] = B[0] * T.float32(0.5) + A[i]


@T.prim_func(s_tir=True)
def shifted_lanes(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    with T.sblock("search"):
        for i in range(8):
            B[i] = A[i]
        B[T.Ramp(1, 1, 4)] = B[T.Ramp(0, 1, 4)]


@T.prim_func(s_tir=True)
def raced(A: T.Buffer((8,), "float32"), B: T.Buffer((1,), "float32")):
    with T.sblock("search"):
        for tx in T.thread_binding(8, thread="threadIdx.x"):
            S = T.alloc_buffer((1,), "float32", scope="shared")
            if tx == 0:
                S[0] = T.float32(0)
            S[0] = S[0] + A[tx]
            if tx == 0:
                B[0] = S[0]


@T.prim_func(s_tir=True)
def factored(A: T.Buffer((1024, 1024), "float32"), B: T.Buffer((1024, 1024), "float32")):
    for i, j in T.grid(1024, 1024):
        B[i, j] = A[i, j]
    with T.sblock("search"):
        for k in range(1024):
            for i in range(k + 1, 1024):
                B[i, k] = B[i, k] / B[k, k]
                for j in range(k + 1, 1024):
                    B[i, j] = B[i, j] - B[i, k] * B[k, j]


REFUSED = [
    (searched, 1, "while loop"),
    (called, 1, "calls secret"),
    (
        exchanged,
        1,
        "S is computed from an element of it that another iteration writes, by the statement",
    ),
    (raced, 1, "threads go on from what others leave in S"),
    (factored, 1, r"loop k go on from all of B, .* by the statement B\[i, k\] = .* over k, i; "),
    (reversed_axis, 1, "do not begin at the first place of its reduce axis"),
    (growing, 2, "how often the loop i runs is read from data"),
    (shifted_lanes, 1, "lanes of a vector go on from what others leave in B"),
]
"""Kernels, how many inputs they have, and why they are refused."""
