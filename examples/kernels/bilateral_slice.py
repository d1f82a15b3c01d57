"""A bilateral slice: color transforms read from a coarse grid by position and a guide's value.

    python examples/kernels/bilateral_slice.py

Gharbi et al., *Deep bilateral learning for real-time image enhancement*, SIGGRAPH 2017. Of each
pixel the guide says how deep in the grid to look, so that the gradient adds to places of the grid
that data choose.
"""

from example import Arrays, Example
from tvm import te, tirx
from tvm.script import tirx as T


def inputs(random, depth, rows, columns, height, width) -> Arrays:
    """A grid of 3 × 4 transforms, a guide, and an image."""
    return {
        "grid": random.standard_normal((12, depth, rows, columns)),
        "guide": random.uniform(0, 1, (height, width)),
        "image": random.uniform(0, 1, (3, height, width)),
    }


def bilateral_slice(grid, guide, image):
    """The image, each pixel transformed by what the guide finds in the grid."""
    _, depth, rows, columns = grid.shape
    _, height, width = image.shape
    z, y, x = (te.reduce_axis((0, 2), name) for name in "zyx")

    def neighbor(position, offset, extent):
        """One of the two cells around a position, and its weight."""
        cell = te.floor(position) + offset
        inside = tirx.Max(tirx.Min(cell.astype("int32"), extent - 1), 0)
        return inside, 1.0 - te.abs(position - cell)

    def transform(t, i, j):
        k, in_depth = neighbor(guide[i, j] * depth - 0.5, z, depth)
        r, in_rows = neighbor((i + 0.5) * rows / height - 0.5, y, rows)
        c, in_columns = neighbor((j + 0.5) * columns / width - 0.5, x, columns)
        return te.sum(grid[t, k, r, c] * in_depth * in_rows * in_columns, axis=[z, y, x])

    affine = te.compute((12, height, width), transform, name="affine")

    def transformed(o, i, j):
        return sum(
            (affine[4 * o + c, i, j] * image[c, i, j] for c in range(3)), affine[4 * o + 3, i, j]
        )

    return te.compute(image.shape, transformed, name="transformed")


def script(depth, rows, columns, height, width):
    """The same in TVMScript."""

    @T.prim_func(s_tir=True)
    def kernel(
        grid: T.Buffer((12, depth, rows, columns), "float32"),
        guide: T.Buffer((height, width), "float32"),
        image: T.Buffer((3, height, width), "float32"),
        out: T.Buffer((3, height, width), "float32"),
    ):
        affine = T.sblock_alloc_buffer((12, height, width), "float32")
        for t, i, j, z, y, x in T.grid(12, height, width, 2, 2, 2):
            with T.sblock("affine"):
                vt, vi, vj, vz, vy, vx = T.axis.remap("SSSRRR", [t, i, j, z, y, x])
                with T.init():
                    affine[vt, vi, vj] = T.float32(0)
                a: T.let = guide[vi, vj] * depth - 0.5
                b: T.let = (T.Cast("float32", vi) + 0.5) * rows / height - 0.5
                c: T.let = (T.Cast("float32", vj) + 0.5) * columns / width - 0.5
                k: T.let = T.floor(a) + vz
                r: T.let = T.floor(b) + vy
                s: T.let = T.floor(c) + vx
                affine[vt, vi, vj] = affine[vt, vi, vj] + (
                    grid[
                        vt,
                        T.max(T.min(T.Cast("int32", k), depth - 1), 0),
                        T.max(T.min(T.Cast("int32", r), rows - 1), 0),
                        T.max(T.min(T.Cast("int32", s), columns - 1), 0),
                    ]
                    * (1.0 - T.abs(a - k))
                    * (1.0 - T.abs(b - r))
                    * (1.0 - T.abs(c - s))
                )
        for o, i, j in T.grid(3, height, width):
            with T.sblock("transformed"):
                vo, vi, vj = T.axis.remap("SSS", [o, i, j])
                out[vo, vi, vj] = (
                    affine[4 * vo, vi, vj] * image[0, vi, vj]
                    + affine[4 * vo + 1, vi, vj] * image[1, vi, vj]
                    + affine[4 * vo + 2, vi, vj] * image[2, vi, vj]
                    + affine[4 * vo + 3, vi, vj]
                )

    return kernel


EXAMPLE = Example(
    inputs,
    bilateral_slice,
    script,
    small={"depth": 3, "rows": 2, "columns": 3, "height": 5, "width": 7},
    large={"depth": 8, "rows": 16, "columns": 16, "height": 384, "width": 512},
)

if __name__ == "__main__":
    EXAMPLE.show()
