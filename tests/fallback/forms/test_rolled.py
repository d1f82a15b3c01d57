"""Products of which each has its own constants become one, and only where loops count those."""

import numpy as np
import pytest
from tvm import te

from graphgrad.fallback.forms.rolled import _loops_over
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import is_reduction, operations
from tests.fallback.interpreter import evaluate


@pytest.mark.parametrize(
    "points, loops",
    [
        ([(1, 4), (0, 6)], [(2, (1, -2))]),
        ([(0,), (3,), (6,), (9,)], [(4, (3,))]),
        ([(0, 0), (0, 2), (1, 0), (1, 2), (2, 0), (2, 2)], [(2, (0, 2)), (3, (1, 0))]),
        ([(5,), (5,)], [(2, (0,))]),
        ([(0,), (1,), (3,)], None),
        ([(0, 0), (0, 1), (1, 0), (1, 2)], None),
        ([(0, 0), (0, 1), (1, 0)], None),
    ],
)
def test_which_constants_loops_count(points, loops):
    assert _loops_over(points[::-1]) == loops


def unrolled(taps, offset, stride=2):
    """Return Σ over taps of sums over channels, each written out, and what they are of."""
    x = te.placeholder((3, 20), "float64", name="x")
    w = te.placeholder((4, 3, 5), "float64", name="w")

    def part(tap):
        k = te.reduce_axis((0, 3), "k")
        return te.compute(
            (4, 7),
            lambda i, j: te.sum(x[k, stride * j + offset(tap)] * w[i, k, tap], axis=k),
            name=f"tap{tap}",
        )

    parts = [part(tap) for tap in taps]
    y = te.compute((4, 7), lambda i, j: sum(part[i, j] for part in parts), name="y")
    return y, [x, w]


@pytest.mark.parametrize(
    "taps, offset, sums",
    [
        (range(4), lambda tap: tap, 1),
        ((0, 2, 4), lambda tap: 7 - tap, 1),
        (range(5), lambda tap: tap * tap % 7, 5),
    ],
    ids=["window", "backwards", "no loop"],
)
def test_taps_that_are_written_out_are_one_sum(taps, offset, sums):
    y, inputs = unrolled(taps, offset)
    random = np.random.default_rng(0)
    x, w, ct = (random.standard_normal(s) for s in ((3, 20), (4, 3, 5), (4, 7)))
    head = te.placeholder((4, 7), "float64", name="head")
    gradients = te_gradient(y, inputs, head)
    by_x, by_w = evaluate(gradients, [*zip([*inputs, head], [x, w, ct], strict=True)])
    expected_x, expected_w = np.zeros_like(x), np.zeros_like(w)
    for tap in taps:
        places = 2 * np.arange(7) + offset(tap)
        np.add.at(expected_x, (slice(None), places), w[:, :, tap].T @ ct)
        expected_w[:, :, tap] = ct @ x[:, places].T
    np.testing.assert_allclose(by_x, expected_x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(by_w, expected_w, rtol=1e-12, atol=1e-12)
    assert sum(map(is_reduction, operations(gradients[1]))) == sums
