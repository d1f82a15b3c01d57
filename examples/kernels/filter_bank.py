"""A learned bank of symmetric filters: the two taps at a distance share a weight.

    python examples/kernels/filter_bank.py

So each filter has linear phase, and half the multiplications of one without symmetry.
"""

from example import Arrays, Example
from tvm import te
from tvm.script import tirx as T


def inputs(random, signals, length, filters, radius) -> Arrays:
    """Signals, and the tap of each filter at each distance."""
    return {
        "signal": random.standard_normal((signals, length + 2 * radius)),
        "tap": random.standard_normal((filters, radius + 1)),
    }


def filter_bank(signal, tap):
    """What each filter makes of each signal."""
    filters, taps = tap.shape
    signals, length = signal.shape
    k = te.reduce_axis((0, 2 * taps - 1), "k")
    return te.compute(
        (signals, filters, length - 2 * taps + 2),
        lambda n, f, i: te.sum(tap[f, te.abs(k - (taps - 1))] * signal[n, i + k], axis=k),
        name="filtered",
    )


def script(signals, length, filters, radius):
    """The same in TVMScript: the middle first, then tap by tap."""

    @T.prim_func(s_tir=True)
    def kernel(
        signal: T.Buffer((signals, length + 2 * radius), "float32"),
        tap: T.Buffer((filters, radius + 1), "float32"),
        out: T.Buffer((signals, filters, length), "float32"),
    ):
        for n, f, i, k in T.grid(signals, filters, length, radius):
            with T.sblock("filtered"):
                vn, vf, vi, vk = T.axis.remap("SSSR", [n, f, i, k])
                with T.init():
                    out[vn, vf, vi] = tap[vf, 0] * signal[vn, vi + radius]
                out[vn, vf, vi] = out[vn, vf, vi] + tap[vf, vk + 1] * (
                    signal[vn, vi + radius - 1 - vk] + signal[vn, vi + radius + 1 + vk]
                )

    return kernel


EXAMPLE = Example(
    inputs,
    filter_bank,
    script,
    small={"signals": 2, "length": 5, "filters": 3, "radius": 2},
    large={"signals": 16, "length": 8192, "filters": 16, "radius": 15},
)

if __name__ == "__main__":
    EXAMPLE.show()
