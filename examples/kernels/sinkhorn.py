"""A step of Sinkhorn's algorithm in logarithms, between two clouds of points.

    python examples/kernels/sinkhorn.py

Peyré and Cuturi, *Computational optimal transport*, 2019, section 4.4.
"""

from example import Arrays, Example
from tvm import te
from tvm.script import tirx as T

BLUR = 0.5


def inputs(random, points, others, dimensions) -> Arrays:
    """Two clouds, and the potential of the second."""
    return {
        "x": random.standard_normal((points, dimensions)),
        "y": random.standard_normal((others, dimensions)),
        "g": random.standard_normal(others),
    }


def sinkhorn(x, y, g):
    """The potential of the second cloud, after that of the first was fitted to it."""
    points, dimensions = x.shape
    others, _ = y.shape
    k = te.reduce_axis((0, dimensions), "k")
    cost = te.compute(
        (points, others),
        lambda i, j: te.sum((x[i, k] - y[j, k]) * (x[i, k] - y[j, k]), axis=k),
        name="cost",
    )

    def softmin(extent, over, term):
        """−ε log Σ exp(−term / ε) of each row."""
        r, s = te.reduce_axis((0, over), "r"), te.reduce_axis((0, over), "s")
        top = te.compute((extent,), lambda i: te.max(term(i, r), axis=r), name="top")
        total = te.compute(
            (extent,), lambda i: te.sum(te.exp((term(i, s) - top[i]) / BLUR), axis=s), name="total"
        )
        return te.compute(
            (extent,), lambda i: -(top[i] + BLUR * te.log(total[i])), name="potential"
        )

    f = softmin(points, others, lambda i, j: g[j] - cost[i, j])
    return softmin(others, points, lambda j, i: f[i] - cost[i, j])


def script(points, others, dimensions):
    """The same in TVMScript."""

    @T.prim_func(s_tir=True)
    def kernel(
        x: T.Buffer((points, dimensions), "float32"),
        y: T.Buffer((others, dimensions), "float32"),
        g: T.Buffer((others,), "float32"),
        out: T.Buffer((others,), "float32"),
    ):
        cost = T.sblock_alloc_buffer((points, others), "float32")
        f = T.sblock_alloc_buffer((points,), "float32")
        top_f = T.sblock_alloc_buffer((points,), "float32")
        total_f = T.sblock_alloc_buffer((points,), "float32")
        top = T.sblock_alloc_buffer((others,), "float32")
        total = T.sblock_alloc_buffer((others,), "float32")
        for i, j, k in T.grid(points, others, dimensions):
            with T.sblock("cost"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    cost[vi, vj] = T.float32(0)
                cost[vi, vj] = cost[vi, vj] + (x[vi, vk] - y[vj, vk]) * (x[vi, vk] - y[vj, vk])
        for i, j in T.grid(points, others):
            with T.sblock("top_f"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    top_f[vi] = T.min_value("float32")
                top_f[vi] = T.max(top_f[vi], g[vj] - cost[vi, vj])
        for i, j in T.grid(points, others):
            with T.sblock("total_f"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    total_f[vi] = T.float32(0)
                total_f[vi] = total_f[vi] + T.exp((g[vj] - cost[vi, vj] - top_f[vi]) / BLUR)
        for i in T.serial(points):
            with T.sblock("f"):
                vi = T.axis.spatial(points, i)
                f[vi] = T.float32(0) - (top_f[vi] + T.log(total_f[vi]) * BLUR)
        for j, i in T.grid(others, points):
            with T.sblock("top"):
                vj, vi = T.axis.remap("SR", [j, i])
                with T.init():
                    top[vj] = T.min_value("float32")
                top[vj] = T.max(top[vj], f[vi] - cost[vi, vj])
        for j, i in T.grid(others, points):
            with T.sblock("total"):
                vj, vi = T.axis.remap("SR", [j, i])
                with T.init():
                    total[vj] = T.float32(0)
                total[vj] = total[vj] + T.exp((f[vi] - cost[vi, vj] - top[vj]) / BLUR)
        for j in T.serial(others):
            with T.sblock("out"):
                vj = T.axis.spatial(others, j)
                out[vj] = T.float32(0) - (top[vj] + T.log(total[vj]) * BLUR)

    return kernel


EXAMPLE = Example(
    inputs,
    sinkhorn,
    script,
    small={"points": 4, "others": 5, "dimensions": 2},
    large={"points": 1024, "others": 1024, "dimensions": 3},
)

if __name__ == "__main__":
    EXAMPLE.show()
