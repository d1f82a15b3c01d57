"""Maps that call the same functions at the same points: one kernel, one nest, one value of each."""

import numpy as np
import pytest
from tvm import relax

from graphgrad.lower.cpu.schedule import may_repeat
from graphgrad.lower.fusion import fuse_maps
from tests.lower.fusion.programs import called, fused, kernels, noted
from tests.running import function, run

op = relax.op
LARGE = ((64, 1024), "float32")
OTHER = ((1024, 64), "float32")


def joined(build, *types):
    return fuse_maps(fused(noted(kernels(build, *types))), may_repeat)


def both(first, second):
    """Return a function of two maps."""
    return lambda b, *x: relax.Tuple([b.emit(first(b, *x)), b.emit(second(b, *x))])


def gate(b, x, y, *_):
    return op.multiply(b.emit(op.sigmoid(x)), y)


def slope(b, x, *_):
    s = b.emit(op.sigmoid(x))
    return op.multiply(s, b.emit(op.subtract(relax.const(1.0), s)))


def plain(b, x, y, *_):
    return op.multiply(x, y)


def root(b, x, *_):
    return op.tanh(x)


def of_the_other(b, x, y, *_):
    return op.sigmoid(y)


def transposed(b, x, y, z):
    return op.add(b.emit(op.sigmoid(b.emit(op.permute_dims(x)))), z)


@pytest.mark.parametrize(
    "first, second, calls",
    [
        (gate, slope, 1),
        (slope, gate, 1),
        (gate, plain, 2),
        (gate, root, 2),
        (slope, of_the_other, 2),
        (slope, transposed, 2),
    ],
)
def test_maps_that_share_functions_and_what_they_read_share_a_kernel(first, second, calls):
    assert len(called(joined(both(first, second), LARGE, LARGE, OTHER))) == calls


def test_a_map_that_reads_the_other_stays_behind_it():
    def build(b, x, y):
        first = b.emit(gate(b, x, y))
        product = b.emit(op.multiply(b.emit(op.sigmoid(x)), first))
        return relax.Tuple([first, product])

    assert len(called(joined(build, LARGE, LARGE))) == 2


def test_three_maps_are_one_kernel_and_small_ones_are_not():
    def build(b, x, y):
        return relax.Tuple([b.emit(each(b, x, y)) for each in (gate, slope, gate)])

    assert len(called(joined(build, LARGE, LARGE))) == 1
    small = ((8, 16), "float32")
    assert len(called(joined(build, small, small))) > 1


@pytest.mark.parametrize("shape", [(64, 1024), (33, 1000), (1 << 15,)])
def test_values_are_those_of_each(shape):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, *shape), "f4") * 9
    mod = function(both(gate, slope), (shape, "float32"), (shape, "float32"))
    gated, slopes = run(mod, "main", x, y)
    s = 1 / (1 + np.exp(-x.astype("f8")))
    np.testing.assert_allclose(gated, s * y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slopes, s * (1 - s), rtol=1e-4, atol=1e-6)
