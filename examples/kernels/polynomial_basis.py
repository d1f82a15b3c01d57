"""A layer of Chebyshev polynomials: each output is a learned polynomial of every input.

    python examples/kernels/polynomial_basis.py

The basis comes by its recurrence, T₀ = 1, T₁ = x, Tₖ = 2x Tₖ₋₁ − Tₖ₋₂, whose gradient is one, too.
"""

from example import Arrays, Example
from tvm import te
from tvm.script import tirx as T


def inputs(random, rows, features, outputs, degrees) -> Arrays:
    """Rows of values in [-1, 1], and a coefficient for each degree, feature and output."""
    return {
        "x": random.uniform(-1, 1, (rows, features)),
        "coefficient": random.standard_normal((degrees, features, outputs)),
    }


def polynomial_basis(x, coefficient):
    """The sum of all polynomials of each row."""
    degrees, features, outputs = coefficient.shape
    rows = x.shape[0]
    state = te.placeholder((degrees, rows, features), x.dtype, name="state")
    first = te.compute(
        (2, rows, features), lambda k, n, i: te.if_then_else(k == 0, 1.0, x[n, i]), name="first"
    )
    following = te.compute(
        state.shape,
        lambda k, n, i: 2.0 * x[n, i] * state[k - 1, n, i] - state[k - 2, n, i],
        name="following",
    )
    basis = te.scan(first, following, state, inputs=[x])
    k, i = te.reduce_axis((0, degrees), "k"), te.reduce_axis((0, features), "i")
    return te.compute(
        (rows, outputs),
        lambda n, o: te.sum(basis[k, n, i] * coefficient[k, i, o], axis=[k, i]),
        name="sums",
    )


def script(rows, features, outputs, degrees):
    """The same in TVMScript."""

    @T.prim_func(s_tir=True)
    def kernel(
        x: T.Buffer((rows, features), "float32"),
        coefficient: T.Buffer((degrees, features, outputs), "float32"),
        out: T.Buffer((rows, outputs), "float32"),
    ):
        basis = T.sblock_alloc_buffer((degrees, rows, features), "float32")
        with T.sblock("basis"):
            for n, i in T.grid(rows, features):
                basis[0, n, i] = T.float32(1)
                basis[1, n, i] = x[n, i]
            for k in T.serial(2, degrees):
                for n, i in T.grid(rows, features):
                    basis[k, n, i] = 2.0 * x[n, i] * basis[k - 1, n, i] - basis[k - 2, n, i]
        for n, o, k, i in T.grid(rows, outputs, degrees, features):
            with T.sblock("sums"):
                vn, vo, vk, vi = T.axis.remap("SSRR", [n, o, k, i])
                with T.init():
                    out[vn, vo] = T.float32(0)
                out[vn, vo] = out[vn, vo] + basis[vk, vn, vi] * coefficient[vk, vi, vo]

    return kernel


EXAMPLE = Example(
    inputs,
    polynomial_basis,
    script,
    small={"rows": 3, "features": 4, "outputs": 2, "degrees": 4},
    large={"rows": 4096, "features": 64, "outputs": 64, "degrees": 8},
)

if __name__ == "__main__":
    EXAMPLE.show()
