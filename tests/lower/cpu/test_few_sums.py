"""Few results that share what they read, summed along memory in vectors of their own."""

import numpy as np
import pytest
from tvm import te

from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.cpu.contraction import blocks_of
from graphgrad.lower.cpu.few_sums import nest_of
from tests.lower.kernel_programs import UNIT, run, tensor


def weight_gradient(columns, window, dtype="float32", rows=40):
    """That of a depthwise convolution: each result's terms lie a window's place further."""
    high, wide = window
    x = tensor(3, 8, rows + high - 1, columns + wide - 1, dtype=dtype)
    ct = tensor(3, 8, rows, columns, dtype=dtype, name="ct")
    extents = ((0, 3), (0, rows), (0, columns))
    n, y, z = (te.reduce_axis(extent, name) for extent, name in zip(extents, "nyz", strict=True))

    def value(c, r, s):
        return te.sum(ct[n, c, y, z] * x[n, c, y + r, z + s], axis=[n, y, z])

    return [x, ct], te.compute((8, high, wide), value, name="sums")


LANES = UNIT.lanes("float32")


def is_served(inputs, output):
    func = te.create_prim_func([*inputs, output])
    (stage,) = stages(func)
    return nest_of(stage, blocks_of(func.body), UNIT) is not None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("window", [(3, 3), (1, 2)], ids=str)
@pytest.mark.parametrize("columns", [LANES, 3 * LANES, 2 * LANES - 3, 4 * LANES + 1])
def test_the_sums_are_the_same(columns, window, dtype):
    inputs, output = weight_gradient(columns, window, dtype)
    runs = run(inputs, [output])
    runs.agree()
    assert runs.vectors == {UNIT.lanes(dtype)}
    assert is_served(inputs, output)


def test_what_a_vector_reaches_back_to_is_counted_once():
    """Also where it is not finite."""
    inputs, output = weight_gradient(LANES + 1, (1, 2))
    x, ct = (np.ones([int(e) for e in t.shape], "float32") for t in inputs)
    x[0, 0, 0, 3] = np.inf
    ct[0, 1, 0, 3] = np.nan
    runs = run(inputs, [output], values=[x, ct])
    np.testing.assert_array_equal(runs.stock[0], runs.scheduled[0])


def weighted_rows():
    """No two results share what they read."""
    x, w, k = tensor(64, 8, 256), tensor(64, 8, 256, name="w"), te.reduce_axis((0, 256), "k")
    return [x, w], te.compute((64, 8), lambda b, i: te.sum(x[b, i, k] * w[b, i, k], axis=k))


def product_of_matrices():
    """Each of both operands is read for several results."""
    x, w, k = tensor(64, 4, 256), tensor(64, 4, 256, name="w"), te.reduce_axis((0, 256), "k")
    return [x, w], te.compute((64, 4, 4), lambda b, i, j: te.sum(x[b, i, k] * w[b, j, k], axis=k))


def strided():
    x, w, k = tensor(64, 512), tensor(64, 3, 256, name="w"), te.reduce_axis((0, 256), "k")
    return [x, w], te.compute((64, 3), lambda b, i: te.sum(x[b, 2 * k] * w[b, i, k], axis=k))


OTHERS = {
    "short rows": lambda: weight_gradient(LANES - 1, (3, 3)),
    "many results": lambda: weight_gradient(2 * LANES, (7, 7)),
    "nothing shared": weighted_rows,
    "both shared": product_of_matrices,
    "strided": strided,
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_other_sums_are_left_to_others(make):
    inputs, output = make()
    assert not is_served(inputs, output)
    run(inputs, [output]).agree()
