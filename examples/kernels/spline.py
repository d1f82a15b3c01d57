"""A cubic B-spline of each channel, with learned coefficients, as an activation.

    python examples/kernels/spline.py

A value falls between two of evenly spaced knots, and reads four coefficients there.
"""

from example import Arrays, Example
from tvm import te, tirx
from tvm.script import tirx as T


def inputs(random, channels, places, knots) -> Arrays:
    """Values in [0, 1], and the coefficients."""
    return {
        "x": random.uniform(0, 1, (channels, places)),
        "coefficient": random.standard_normal((channels, knots + 3)),
    }


def spline(x, coefficient):
    """The spline of each channel at its values."""
    knots = coefficient.shape[1] - 3
    m = te.reduce_axis((0, 4), "m")

    def value(c, i):
        position = x[c, i] * knots
        cell = tirx.Max(tirx.Min(te.floor(position).astype("int32"), knots - 1), 0)
        u = position - cell.astype("float32")
        # The distance to the middle of the m-th basis function, which is 2 wide to either side.
        d = te.abs(u + 1.0 - m)
        near = 4.0 - 6.0 * d * d + 3.0 * d * d * d
        far = (2.0 - d) * (2.0 - d) * (2.0 - d)
        return te.sum(tirx.Select(d < 1.0, near, far) * coefficient[c, cell + m], axis=m)

    sums = te.compute(x.shape, value, name="sums")
    return te.compute(x.shape, lambda c, i: sums[c, i] / 6.0, name="spline")


def script(channels, places, knots):
    """The same in TVMScript, by the four pieces of the basis."""

    @T.prim_func(s_tir=True)
    def kernel(
        x: T.Buffer((channels, places), "float32"),
        coefficient: T.Buffer((channels, knots + 3), "float32"),
        out: T.Buffer((channels, places), "float32"),
    ):
        for c, i in T.grid(channels, places):
            with T.sblock("spline"):
                vc, vi = T.axis.remap("SS", [c, i])
                position: T.let = x[vc, vi] * T.float32(knots)
                cell: T.let = T.max(T.min(T.Cast("int32", T.floor(position)), knots - 1), 0)
                u: T.let = position - T.Cast("float32", cell)
                v: T.let = 1.0 - u
                out[vc, vi] = (
                    v * v * v * coefficient[vc, cell]
                    + (3.0 * u * u * u - 6.0 * u * u + 4.0) * coefficient[vc, cell + 1]
                    + (3.0 * v * v * v - 6.0 * v * v + 4.0) * coefficient[vc, cell + 2]
                    + u * u * u * coefficient[vc, cell + 3]
                ) / 6.0

    return kernel


EXAMPLE = Example(
    inputs,
    spline,
    script,
    small={"channels": 3, "places": 5, "knots": 4},
    large={"channels": 64, "places": 16384, "knots": 16},
)

if __name__ == "__main__":
    EXAMPLE.show()
