"""Kernels of all other forms, written by hand; each with how many inputs it has."""

from tvm.script.parser import tirx as T


@T.prim_func(s_tir=True)
def matched(A: T.Buffer((16, 8), "float64"), B: T.Buffer((16, 8), "float64")):
    for i in range(4):
        with T.sblock("part"):
            vi = T.axis.spatial(4, i)
            a = T.match_buffer(A[vi * 4 : vi * 4 + 4, 0:8], (4, 8), "float64", offset_factor=1)
            b = T.match_buffer(B[vi * 4 : vi * 4 + 4, 0:8], (4, 8), "float64", offset_factor=1)
            for x, y in T.grid(4, 8):
                b[x, y] = a[3 - x, y] * a[x, y]


@T.prim_func(s_tir=True)
def matched_row(A: T.Buffer((4, 8), "float64"), B: T.Buffer((4,), "float64")):
    for i in range(4):
        with T.sblock("row"):
            vi = T.axis.spatial(4, i)
            a = T.match_buffer(A[vi, 0:8], (8,), "float64", offset_factor=1)
            B[vi] = T.float64(1)
            for x in range(8):
                B[vi] = B[vi] * a[x]


@T.prim_func(s_tir=True)
def scattered(
    A: T.Buffer((6, 3), "float64"), J: T.Buffer((6,), "int32"), B: T.Buffer((4, 3), "float64")
):
    for i, j in T.grid(4, 3):
        B[i, j] = T.float64(0)
    for i, j in T.grid(6, 3):
        B[J[i], j] = B[J[i], j] + A[i, j] * A[i, j]


@T.prim_func(s_tir=True)
def scattered_under_a_condition(
    A: T.Buffer((6,), "float64"), J: T.Buffer((6,), "int32"), B: T.Buffer((4,), "float64")
):
    for i in range(4):
        B[i] = T.float64(1)
    for i in range(6):
        if A[i] > T.float64(0):
            k = J[i]
            B[k] = B[k] - A[i]


@T.prim_func(s_tir=True)
def added_by_threads(
    A: T.Buffer((6,), "float64"), J: T.Buffer((6,), "int32"), B: T.Buffer((4,), "float64")
):
    for i in range(4):
        B[i] = T.float64(0)
    for i in range(6):
        T.evaluate(
            T.call_extern("float64", "atomicAdd", T.address_of(B[J[i]]), A[i] * T.float64(2))
        )


@T.prim_func(s_tir=True)
def one_hot(
    A: T.Buffer((6,), "float64"), J: T.Buffer((6,), "int32"), B: T.Buffer((6, 4), "float64")
):
    for i, j in T.grid(6, 4):
        B[i, j] = T.float64(0)
    for i in range(6):
        B[i, J[i]] = T.exp(A[i])


@T.prim_func(s_tir=True)
def compressed_rows(
    P: T.Buffer((4,), "int32"),
    C: T.Buffer((6,), "int32"),
    V: T.Buffer((6,), "float64"),
    X: T.Buffer((4,), "float64"),
    Y: T.Buffer((3,), "float64"),
):
    for i in range(3):
        Y[i] = T.float64(0)
        for k in range(P[i + 1] - P[i]):
            Y[i] = Y[i] + V[P[i] + k] * X[C[P[i] + k]]


@T.prim_func(s_tir=True)
def stepped(A: T.Buffer((9,), "float64"), B: T.Buffer((9,), "float64")):
    for i in range(9):
        B[i] = T.float64(0)
    for i in T.serial(1, 9, step=2):
        B[i] = A[i] * A[i - 1]


@T.prim_func(s_tir=True)
def changed_by_sign(
    A: T.Buffer((6,), "float64"), B: T.Buffer((6,), "float64"), C: T.Buffer((6,), "float64")
):
    for i in range(6):
        B[i] = A[i]
        C[i] = T.float64(2)
        if B[i] < T.float64(0):
            B[i] = T.float64(0) - B[i]
            C[i] = B[i] * T.float64(3)


@T.prim_func(s_tir=True)
def read_back(
    A: T.Buffer((6,), "float64"), B: T.Buffer((6,), "float64"), C: T.Buffer((6,), "float64")
):
    for i in range(6):
        v: T.let = A[i] * A[i]
        B[i] = v
        C[i] = B[i] * v


@T.prim_func(s_tir=True)
def swapped(
    A: T.Buffer((6,), "float64"), B: T.Buffer((6,), "float64"), C: T.Buffer((6,), "float64")
):
    for i in range(6):
        B[i] = A[i]
        C[i] = A[5 - i] * T.float64(2)
    for i in range(6):
        b: T.let = B[i]
        c: T.let = C[i]
        B[i] = c
        C[i] = b


@T.prim_func(s_tir=True)
def largest_by_branch(A: T.Buffer((3, 5), "float64"), B: T.Buffer((3,), "float64")):
    for i in range(3):
        B[i] = A[i, 0]
        for k in range(5):
            if A[i, k] > B[i]:  # noqa: PLR1730 (read by TVM, not run)
                B[i] = A[i, k]


@T.prim_func(s_tir=True)
def largest_pair(
    A: T.Buffer((3, 5), "float64"), J: T.Buffer((3,), "int32"), B: T.Buffer((3,), "float64")
):
    for i, k in T.grid(3, 5):
        with T.sblock("largest"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                J[vi] = -1
                B[vi] = T.min_value("float64")
            position: T.let = T.Select(B[vi] >= A[vi, vk], J[vi], vk)
            value: T.let = T.Select(B[vi] >= A[vi, vk], B[vi], A[vi, vk])
            J[vi] = position
            B[vi] = value


@T.prim_func(s_tir=True)
def begun_anew_in_each_iteration(A: T.Buffer((4,), "float64"), B: T.Buffer((1,), "float64")):
    S = T.sblock_alloc_buffer((1,), "float64")
    for i in range(4):
        with T.sblock("total"):
            vi = T.axis.reduce(4, i)
            with T.init():
                S[0] = T.float64(0)
            S[0] = S[0] + A[vi]
        for k in range(2):
            with T.sblock("squares"):
                vk = T.axis.reduce(2, k)
                with T.init():
                    B[0] = T.float64(0)
                B[0] = B[0] + S[0] * S[0] + T.Cast("float64", vk)


@T.prim_func(s_tir=True)
def begun_with_what_changes(
    A: T.Buffer((4,), "float64"), W: T.Buffer((4, 3), "float64"), B: T.Buffer((4,), "float64")
):
    S = T.alloc_buffer((1,), "float64")
    S[0] = T.float64(0)
    for i in range(4):
        S[0] = S[0] + A[i]
        for k in range(3):
            with T.sblock("sum"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = S[0]
                B[vi] = B[vi] + W[vi, vk]


@T.prim_func(s_tir=True)
def begun_after_another_element(A: T.Buffer((2, 3), "float64"), B: T.Buffer((2,), "float64")):
    for o, i in T.grid(2, 3):
        with T.sblock("fused"):
            vi = T.axis.spatial(2, (o * 3 + i) % 2)
            vk = T.axis.reduce(3, (o * 3 + i) // 2)
            with T.init():
                B[vi] = T.float64(2)
            B[vi] = B[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def not_associative(A: T.Buffer((3, 5), "float64"), B: T.Buffer((3,), "float64")):
    for i, k in T.grid(3, 5):
        with T.sblock("decayed"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float64(0)
            B[vi] = B[vi] * T.float64(0.5) + A[vi, vk]


@T.prim_func(s_tir=True)
def sum_if_positive(A: T.Buffer((8,), "float64"), B: T.Buffer((1,), "float64")):
    B[0] = T.float64(0.5)
    for i in range(8):
        if B[0] > T.float64(0):
            B[0] = B[0] + A[i]


@T.prim_func(s_tir=True)
def windows(A: T.Buffer((10,), "float64"), B: T.Buffer((8,), "float64")):
    for i0 in range(2):
        S = T.alloc_buffer((6,), "float64")
        for x in range(6):
            S[x] = A[i0 * 4 + x] * A[i0 * 4 + x]
        for x in range(4):
            B[i0 * 4 + x] = S[x] + S[x + 1] * S[x + 2]


@T.prim_func(s_tir=True)
def epilogue(
    A: T.Buffer((3, 4), "float64"), B: T.Buffer((3,), "float64"), C: T.Buffer((3,), "float64")
):
    for i, k in T.grid(3, 4):
        if k == 0:
            B[i] = T.float64(0)
        B[i] = B[i] + A[i, k]
        if k == 3:
            C[i] = T.exp(B[i])


@T.prim_func(s_tir=True)
def unrolled_steps(
    A: T.Buffer((2, 8), "float64"), W: T.Buffer((4,), "float64"), B: T.Buffer((2, 8), "float64")
):
    with T.sblock("steps"):
        for i, j in T.grid(2, 8):
            B[i, j] = A[i, j]
        for k in T.unroll(2):
            for i, j in T.grid(2, 4):
                B[i, 2 * j] = B[i, 2 * j] + W[2 * k] * B[i, T.max(2 * j - 1, 1)]
            for i, j in T.grid(2, 4):
                B[i, 2 * j + 1] = B[i, 2 * j + 1] * B[i, T.min(2 * j + 2, 6)] + W[2 * k + 1]


PLAIN = {
    matched: 1, matched_row: 1, scattered: 2, scattered_under_a_condition: 2,
    one_hot: 2, stepped: 1, changed_by_sign: 1, read_back: 1, swapped: 1,
    largest_by_branch: 1, largest_pair: 1, not_associative: 1, sum_if_positive: 1, windows: 1,
    epilogue: 1, begun_anew_in_each_iteration: 1, begun_with_what_changes: 2,
    begun_after_another_element: 1, unrolled_steps: 2,
}  # fmt: skip
