"""Sampling at the points of a grid, at its borders."""

import numpy as np
import pytest
from tvm import relax

from tests.running import F64, function, run

image = relax.op.image


def test_the_corners_of_a_grid_are_exact():
    mod = function(lambda b, t: b.emit(image.affine_grid(t, (3, 2))), ((1, 2, 3), F64))
    theta = np.array([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    (grid,) = run(mod, "main", theta)
    assert grid.max() == 1.0 and grid.min() == -1.0


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_point_that_is_nowhere_reads_zero(value):
    types = ((1, 1, 2, 2), F64), ((1, 2, 1, 1), F64)
    mod = function(lambda b, x, g: b.emit(image.grid_sample(x, g, method="nearest")), *types)
    (y,) = run(mod, "main", np.ones((1, 1, 2, 2)), np.full((1, 2, 1, 1), value))
    assert y == 0
