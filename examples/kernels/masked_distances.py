"""Distances of pairs in padded sets, each dimension on a scale of its own.

    python examples/kernels/masked_distances.py

The distance is a pseudo-Huber one, smooth where two points meet. No tensor of all differences is
ever made, in the gradient neither.
"""

from example import Arrays, Example
from tvm import te
from tvm.script import tirx as T


def inputs(random, batch, points, others, dimensions) -> Arrays:
    """Two sets, how many points of each count, and the scales."""
    return {
        "x": random.standard_normal((batch, points, dimensions)),
        "y": random.standard_normal((batch, others, dimensions)),
        "x_count": random.integers(points // 2, points + 1, batch, dtype="int32"),
        "y_count": random.integers(others // 2, others + 1, batch, dtype="int32"),
        "scale": random.uniform(0.5, 1.5, dimensions),
    }


def masked_distances(x, y, x_count, y_count, scale):
    """The distance of each pair; 0 where one of the two is padding."""
    batch, points, dimensions = x.shape
    _, others, _ = y.shape
    k = te.reduce_axis((0, dimensions), "k")

    def distance(b, i, j):
        difference = (x[b, i, k] - y[b, j, k]) * scale[k]
        return te.sum(te.sqrt(1.0 + difference * difference) - 1.0, axis=k)

    distances = te.compute((batch, points, others), distance, name="distances")
    return te.compute(
        distances.shape,
        lambda b, i, j: te.if_then_else(
            te.all(i < x_count[b], j < y_count[b]), distances[b, i, j], 0.0
        ),
        name="masked",
    )


def script(batch, points, others, dimensions):
    """The same in TVMScript."""

    @T.prim_func(s_tir=True)
    def kernel(
        x: T.Buffer((batch, points, dimensions), "float32"),
        y: T.Buffer((batch, others, dimensions), "float32"),
        x_count: T.Buffer((batch,), "int32"),
        y_count: T.Buffer((batch,), "int32"),
        scale: T.Buffer((dimensions,), "float32"),
        out: T.Buffer((batch, points, others), "float32"),
    ):
        for b, i, j, k in T.grid(batch, points, others, dimensions):
            with T.sblock("distance"):
                vb, vi, vj, vk = T.axis.remap("SSSR", [b, i, j, k])
                with T.init():
                    out[vb, vi, vj] = T.float32(0)
                if vi < x_count[vb] and vj < y_count[vb]:
                    difference: T.let = (x[vb, vi, vk] - y[vb, vj, vk]) * scale[vk]
                    out[vb, vi, vj] = out[vb, vi, vj] + T.sqrt(difference * difference + 1.0) - 1.0

    return kernel


EXAMPLE = Example(
    inputs,
    masked_distances,
    script,
    small={"batch": 2, "points": 4, "others": 5, "dimensions": 3},
    large={"batch": 4, "points": 256, "others": 256, "dimensions": 32},
)

if __name__ == "__main__":
    EXAMPLE.show()
