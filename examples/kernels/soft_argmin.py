"""A soft arg-min over a cost volume: the disparity of two images, as stereo networks take it.

    python examples/kernels/soft_argmin.py

Kendall et al., *End-to-end learning of geometry and context for deep stereo regression*, ICCV 2017.
"""

from example import Arrays, Example
from tvm import te
from tvm.script import tirx as T


def inputs(random, channels, height, width, disparities) -> Arrays:
    """Features of the left image, and of the right one, which shows more to the left."""
    return {
        "left": random.standard_normal((channels, height, width)),
        "right": random.standard_normal((channels, height, width + disparities - 1)),
    }


def soft_argmin(left, right, disparities):
    """The mean disparity of each pixel, weighted by a softmax of what it costs."""
    channels, height, width = left.shape
    pixels = (height, width)
    c = te.reduce_axis((0, channels), "c")
    d, e, f = (te.reduce_axis((0, disparities), name) for name in "def")

    border = disparities - 1
    cost = te.compute(
        (disparities, *pixels),
        lambda d, i, j: te.sum(te.abs(left[c, i, j] - right[c, i, j + border - d]), axis=c),
        name="cost",
    )
    least = te.compute(pixels, lambda i, j: te.min(cost[d, i, j], axis=d), name="least")
    weight = te.compute(
        cost.shape, lambda d, i, j: te.exp(least[i, j] - cost[d, i, j]), name="weight"
    )
    total = te.compute(pixels, lambda i, j: te.sum(weight[e, i, j], axis=e), name="total")
    moment = te.compute(
        pixels, lambda i, j: te.sum(f.astype("float32") * weight[f, i, j], axis=f), name="moment"
    )
    return te.compute(pixels, lambda i, j: moment[i, j] / total[i, j], name="disparity")


def script(channels, height, width, disparities):
    """The same in TVMScript."""
    border = disparities - 1

    @T.prim_func(s_tir=True)
    def kernel(
        left: T.Buffer((channels, height, width), "float32"),
        right: T.Buffer((channels, height, width + border), "float32"),
        out: T.Buffer((height, width), "float32"),
    ):
        cost = T.sblock_alloc_buffer((disparities, height, width), "float32")
        least = T.sblock_alloc_buffer((height, width), "float32")
        total = T.sblock_alloc_buffer((height, width), "float32")
        moment = T.sblock_alloc_buffer((height, width), "float32")
        for d, i, j, c in T.grid(disparities, height, width, channels):
            with T.sblock("cost"):
                vd, vi, vj, vc = T.axis.remap("SSSR", [d, i, j, c])
                with T.init():
                    cost[vd, vi, vj] = T.float32(0)
                cost[vd, vi, vj] = cost[vd, vi, vj] + T.abs(
                    left[vc, vi, vj] - right[vc, vi, vj + border - vd]
                )
        for i, j, d in T.grid(height, width, disparities):
            with T.sblock("least"):
                vi, vj, vd = T.axis.remap("SSR", [i, j, d])
                with T.init():
                    least[vi, vj] = T.max_value("float32")
                least[vi, vj] = T.min(least[vi, vj], cost[vd, vi, vj])
        for i, j, d in T.grid(height, width, disparities):
            with T.sblock("total"):
                vi, vj, vd = T.axis.remap("SSR", [i, j, d])
                with T.init():
                    total[vi, vj] = T.float32(0)
                total[vi, vj] = total[vi, vj] + T.exp(least[vi, vj] - cost[vd, vi, vj])
        for i, j, d in T.grid(height, width, disparities):
            with T.sblock("moment"):
                vi, vj, vd = T.axis.remap("SSR", [i, j, d])
                with T.init():
                    moment[vi, vj] = T.float32(0)
                moment[vi, vj] = moment[vi, vj] + T.Cast("float32", vd) * T.exp(
                    least[vi, vj] - cost[vd, vi, vj]
                )
        for i, j in T.grid(height, width):
            with T.sblock("disparity"):
                vi, vj = T.axis.remap("SS", [i, j])
                out[vi, vj] = moment[vi, vj] / total[vi, vj]

    return kernel


EXAMPLE = Example(
    inputs,
    soft_argmin,
    script,
    small={"channels": 2, "height": 3, "width": 7, "disparities": 4},
    large={"channels": 16, "height": 96, "width": 192, "disparities": 32},
    settings=("disparities",),
)

if __name__ == "__main__":
    EXAMPLE.show()
