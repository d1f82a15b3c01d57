"""A deformable window: a depthwise convolution whose taps are moved by data.

    python examples/kernels/deformable_window.py

Dai et al., *Deformable convolutional networks*, ICCV 2017. Each tap reads the image between four
pixels; the gradient adds to these, and moves the taps.
"""

from example import Arrays, Example
from tvm import te
from tvm.script import tirx as T


def inputs(random, channels, height, width, window) -> Arrays:
    """An image, how far each tap is moved down and to the right, and the weights."""
    return {
        "image": random.standard_normal((channels, height, width)),
        "down": random.standard_normal((window * window, height, width)),
        "right": random.standard_normal((window * window, height, width)),
        "weight": random.standard_normal((window * window, channels)),
    }


def deformable_window(image, down, right, weight, window):
    """The weighted sum of what the taps read; 0 outside of the image."""
    channels, height, width = image.shape
    t = te.reduce_axis((0, window * window), "t")
    y, x = (te.reduce_axis((0, 2), name) for name in "yx")

    def read(t, c, i, j):
        row = down[t, i, j] + (i + t // window - window // 2)
        column = right[t, i, j] + (j + t % window - window // 2)
        r, s = te.floor(row) + y, te.floor(column) + x
        share = (1.0 - te.abs(row - r)) * (1.0 - te.abs(column - s))
        inside = te.all(r >= 0, r < height, s >= 0, s < width)
        pixel = image[c, r.astype("int32"), s.astype("int32")]
        return te.sum(te.if_then_else(inside, pixel * share, 0.0), axis=[y, x])

    taps = te.compute((window * window, channels, height, width), read, name="taps")
    return te.compute(
        image.shape,
        lambda c, i, j: te.sum(weight[t, c] * taps[t, c, i, j], axis=t),
        name="window",
    )


def script(channels, height, width, window):
    """The same in TVMScript."""
    count, half = window * window, window // 2

    @T.prim_func(s_tir=True)
    def kernel(
        image: T.Buffer((channels, height, width), "float32"),
        down: T.Buffer((count, height, width), "float32"),
        right: T.Buffer((count, height, width), "float32"),
        weight: T.Buffer((count, channels), "float32"),
        out: T.Buffer((channels, height, width), "float32"),
    ):
        taps = T.sblock_alloc_buffer((count, channels, height, width), "float32")
        for t, c, i, j, y, x in T.grid(count, channels, height, width, 2, 2):
            with T.sblock("taps"):
                vt, vc, vi, vj, vy, vx = T.axis.remap("SSSSRR", [t, c, i, j, y, x])
                with T.init():
                    taps[vt, vc, vi, vj] = T.float32(0)
                row: T.let = down[vt, vi, vj] + T.Cast("float32", vi + vt // window - half)
                column: T.let = right[vt, vi, vj] + T.Cast("float32", vj + vt % window - half)
                r: T.let = T.Cast("int32", T.floor(row)) + vy
                s: T.let = T.Cast("int32", T.floor(column)) + vx
                if r >= 0 and r < height and s >= 0 and s < width:
                    taps[vt, vc, vi, vj] = taps[vt, vc, vi, vj] + (
                        image[vc, r, s]
                        * (1.0 - T.abs(row - T.Cast("float32", r)))
                        * (1.0 - T.abs(column - T.Cast("float32", s)))
                    )
        for c, i, j, t in T.grid(channels, height, width, count):
            with T.sblock("window"):
                vc, vi, vj, vt = T.axis.remap("SSSR", [c, i, j, t])
                with T.init():
                    out[vc, vi, vj] = T.float32(0)
                out[vc, vi, vj] = out[vc, vi, vj] + weight[vt, vc] * taps[vt, vc, vi, vj]

    return kernel


EXAMPLE = Example(
    inputs,
    deformable_window,
    script,
    small={"channels": 2, "height": 4, "width": 5, "window": 3},
    large={"channels": 32, "height": 64, "width": 64, "window": 3},
    settings=("window",),
)

if __name__ == "__main__":
    EXAMPLE.show()
