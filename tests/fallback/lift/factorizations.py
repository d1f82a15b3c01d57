"""Factorizations and solves of matrices, as kernels that overwrite what they read."""

from tvm.script.parser import tirx as T


@T.prim_func(s_tir=True)
def cholesky(A: T.Buffer((5, 5), "float64")):
    """The lower triangle, column by column; what is above the diagonal stays as it is."""
    for k in range(5):
        A[k, k] = T.sqrt(A[k, k])
        for i in range(k + 1, 5):
            A[i, k] = A[i, k] / A[k, k]
        for j in range(k + 1, 5):
            for i in range(j, 5):
                A[i, j] = A[i, j] - A[i, k] * A[j, k]


@T.prim_func(s_tir=True)
def cholesky_by_rows(A: T.Buffer((5, 5), "float64"), L: T.Buffer((5, 5), "float64")):
    for i in range(5):
        for j in range(i + 1):
            s = T.alloc_local((1,), "float64")
            s[0] = A[i, j]
            for k in range(j):
                s[0] = s[0] - L[i, k] * L[j, k]
            if i == j:
                L[i, j] = T.sqrt(s[0])
            else:
                L[i, j] = s[0] / L[j, j]


@T.prim_func(s_tir=True)
def cholesky_of_blocks(A: T.Buffer((4, 4), "float64")):
    for b in range(2):
        for k in range(2):
            A[b * 2 + k, b * 2 + k] = T.sqrt(A[b * 2 + k, b * 2 + k])
            for i in range(b * 2 + k + 1, 4):
                A[i, b * 2 + k] = A[i, b * 2 + k] / A[b * 2 + k, b * 2 + k]
            for j in range(b * 2 + k + 1, b * 2 + 2):
                for i in range(j, 4):
                    A[i, j] = A[i, j] - A[i, b * 2 + k] * A[j, b * 2 + k]
        for j in range(b * 2 + 2, 4):
            for i in range(j, 4):
                for k in range(2):
                    A[i, j] = A[i, j] - A[i, b * 2 + k] * A[j, b * 2 + k]


@T.prim_func(s_tir=True)
def cholesky_of_many(A: T.Buffer((2, 4, 4), "float64"), L: T.Buffer((2, 4, 4), "float64")):
    for b in range(2):
        for i, j in T.grid(4, 4):
            L[b, i, j] = T.if_then_else(j <= i, A[b, i, j], T.float64(0))
        for k in range(4):
            L[b, k, k] = T.sqrt(L[b, k, k])
            for i in range(k + 1, 4):
                L[b, i, k] = L[b, i, k] / L[b, k, k]
            for j in range(k + 1, 4):
                for i in range(j, 4):
                    L[b, i, j] = L[b, i, j] - L[b, i, k] * L[b, j, k]


@T.prim_func(s_tir=True)
def lu(A: T.Buffer((5, 5), "float64")):
    for k in range(5):
        for i in range(k + 1, 5):
            A[i, k] = A[i, k] / A[k, k]
            for j in range(k + 1, 5):
                A[i, j] = A[i, j] - A[i, k] * A[k, j]


@T.prim_func(s_tir=True)
def lu_under_conditions(A: T.Buffer((5, 5), "float64")):
    for k, i in T.grid(5, 5):
        if i > k:
            A[i, k] = A[i, k] / A[k, k]
            for j in range(5):
                if j > k:
                    A[i, j] = A[i, j] - A[i, k] * A[k, j]


@T.prim_func(s_tir=True)
def lu_by_columns(A: T.Buffer((5, 5), "float64")):
    for j in range(5):
        for i in range(j + 1):
            for k in range(i):
                A[i, j] = A[i, j] - A[i, k] * A[k, j]
        for i in range(j + 1, 5):
            for k in range(j):
                A[i, j] = A[i, j] - A[i, k] * A[k, j]
            A[i, j] = A[i, j] / A[j, j]


@T.prim_func(s_tir=True)
def lu_pivoted(A: T.Buffer((4, 4), "float64")):
    for k in range(3):
        largest = T.alloc_local((1,), "float64")
        pivot = T.alloc_local((1,), "int32")
        largest[0] = T.float64(-1)
        pivot[0] = k
        for i in range(k, 4):
            if T.abs(A[i, k]) > largest[0]:
                largest[0] = T.abs(A[i, k])
                pivot[0] = i
        for j in range(4):
            kept = T.alloc_local((1,), "float64")
            kept[0] = A[k, j]
            A[k, j] = A[pivot[0], j]
            A[pivot[0], j] = kept[0]
        for i in range(k + 1, 4):
            A[i, k] = A[i, k] / A[k, k]
            for j in range(k + 1, 4):
                A[i, j] = A[i, j] - A[i, k] * A[k, j]


@T.prim_func(s_tir=True)
def lu_of_long_loops(A: T.Buffer((T.int64(5), T.int64(5)), "float64")):
    for k in range(T.int64(5)):
        for i in range(k + T.int64(1), T.int64(5)):
            A[i, k] = A[i, k] / A[k, k]
            for j in range(k + T.int64(1), T.int64(5)):
                A[i, j] = A[i, j] - A[i, k] * A[k, j]


@T.prim_func(s_tir=True)
def cholesky_of_long_loops(
    A: T.Buffer((T.int64(4), T.int64(4)), "float64"),
    L: T.Buffer((T.int64(4), T.int64(4)), "float64"),
):
    for i in range(T.int64(4)):
        for j in range(i + T.int64(1)):
            s = T.alloc_local((1,), "float64")
            s[0] = A[i, j]
            for k in range(j):
                s[0] = s[0] - L[i, k] * L[j, k]
            if i == j:
                L[i, j] = T.sqrt(s[0])
            else:
                L[i, j] = s[0] / L[j, j]


@T.prim_func(s_tir=True)
def inverse(A: T.Buffer((4, 4), "float64")):
    """By Gauss and Jordan, without pivots."""
    for k in range(4):
        p = T.alloc_local((1,), "float64")
        p[0] = T.float64(1) / A[k, k]
        A[k, k] = T.float64(1)
        for j in range(4):
            A[k, j] = A[k, j] * p[0]
        for i in range(4):
            if i != k:
                f = T.alloc_local((1,), "float64")
                f[0] = A[i, k]
                A[i, k] = T.float64(0)
                for j in range(4):
                    A[i, j] = A[i, j] - f[0] * A[k, j]


@T.prim_func(s_tir=True)
def gram_schmidt(Q: T.Buffer((6, 4), "float64"), R: T.Buffer((4, 4), "float64")):
    """The modified one: orthonormal columns, and their products with those that were there."""
    for i, j in T.grid(4, 4):
        R[i, j] = T.float64(0)
    for k in range(4):
        for i in range(6):
            R[k, k] = R[k, k] + Q[i, k] * Q[i, k]
        R[k, k] = T.sqrt(R[k, k])
        for i in range(6):
            Q[i, k] = Q[i, k] / R[k, k]
        for j in range(k + 1, 4):
            for i in range(6):
                R[k, j] = R[k, j] + Q[i, k] * Q[i, j]
            for i in range(6):
                Q[i, j] = Q[i, j] - Q[i, k] * R[k, j]


@T.prim_func(s_tir=True)
def givens(A: T.Buffer((4, 3), "float64")):
    """The triangular factor of QR, by rotations of two rows each."""
    for j in range(3):
        for i in range(j + 1, 4):
            c = T.alloc_local((1,), "float64")
            s = T.alloc_local((1,), "float64")
            r = T.alloc_local((1,), "float64")
            r[0] = T.sqrt(A[j, j] * A[j, j] + A[i, j] * A[i, j])
            c[0] = A[j, j] / r[0]
            s[0] = A[i, j] / r[0]
            for k in range(3):
                kept = T.alloc_local((1,), "float64")
                kept[0] = c[0] * A[j, k] + s[0] * A[i, k]
                A[i, k] = c[0] * A[i, k] - s[0] * A[j, k]
                A[j, k] = kept[0]


@T.prim_func(s_tir=True)
def ldl(A: T.Buffer((5, 5), "float64"), D: T.Buffer((5,), "float64")):
    for j in range(5):
        D[j] = A[j, j]
        for k in range(j):
            D[j] = D[j] - A[j, k] * A[j, k] * D[k]
        for i in range(j + 1, 5):
            for k in range(j):
                A[i, j] = A[i, j] - A[i, k] * A[j, k] * D[k]
            A[i, j] = A[i, j] / D[j]


@T.prim_func(s_tir=True)
def solve(L: T.Buffer((5, 5), "float64"), B: T.Buffer((5,), "float64")):
    """L Lᵀ x = b: forwards, then backwards."""
    for i in range(5):
        for j in range(i):
            B[i] = B[i] - L[i, j] * B[j]
        B[i] = B[i] / L[i, i]
    for r in range(5):
        for j in range(5 - r, 5):
            B[4 - r] = B[4 - r] - L[j, 4 - r] * B[j]
        B[4 - r] = B[4 - r] / L[4 - r, 4 - r]


@T.prim_func(s_tir=True)
def solve_by_columns(L: T.Buffer((5, 5), "float64"), B: T.Buffer((5,), "float64")):
    for j in range(5):
        B[j] = B[j] / L[j, j]
        for i in range(j + 1, 5):
            B[i] = B[i] - L[i, j] * B[j]


@T.prim_func(s_tir=True)
def tridiagonal(
    a: T.Buffer((6,), "float64"),
    b: T.Buffer((6,), "float64"),
    c: T.Buffer((6,), "float64"),
    d: T.Buffer((6,), "float64"),
):
    c[0] = c[0] / b[0]
    d[0] = d[0] / b[0]
    for i in range(1, 6):
        c[i] = c[i] / (b[i] - a[i] * c[i - 1])
        d[i] = (d[i] - a[i] * d[i - 1]) / (b[i] - a[i] * c[i])
    for r in range(5):
        d[4 - r] = d[4 - r] - c[4 - r] * d[5 - r]


FACTORIZATIONS = {
    cholesky: (0, 1), cholesky_by_rows: (1, 0), cholesky_of_blocks: (0, 1),
    cholesky_of_many: (1, 0), lu: (0, 1), lu_under_conditions: (0, 1), lu_by_columns: (0, 1),
    lu_pivoted: (0, 1), lu_of_long_loops: (0, 1), cholesky_of_long_loops: (1, 0),
    inverse: (0, 1), gram_schmidt: (0, 1), givens: (0, 1), ldl: (0, 1),
    solve: (1, 1), solve_by_columns: (1, 1), tridiagonal: (2, 2),
}  # fmt: skip
"""Kernels, how many inputs they have, and how many parameters behind those they overwrite."""
