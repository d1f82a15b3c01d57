"""Kernels of signals and images, as differentiable programming languages for them check theirs.

The list follows what is published with Halide's autodiff (Li et al., *Differentiable programming
for image processing and deep learning in Halide*, 2018): stencils, resampling, scatter and
histograms, reads at positions that depend on data, recursive filters. Every gradient is compared
with differences.
"""

import numpy as np
import pytest
from tvm import te, tirx

from tests.fallback.judge import SMOOTH, judge
from tests.fallback.programs import Program

KERNELS = {}


def kernel(function):
    """Register a function that takes a maker of inputs and returns the outputs."""
    KERNELS[function.__name__] = function
    return function


class Inputs:
    """Makes placeholders and values for them."""

    def __init__(self):
        self.generator = np.random.default_rng(3)
        self.known = []

    def reals(self, name, *shape, low=-1.0, high=1.0):
        return self._new(name, "float64", self.generator.uniform(low, high, shape))

    def integers(self, name, *shape, below):
        return self._new(name, "int32", self.generator.integers(0, below, shape).astype("int32"))

    def _new(self, name, dtype, array):
        tensor = te.placeholder(array.shape, dtype, name=name)
        self.known.append((tensor, array))
        return tensor


def loop(extent, name="r"):
    return te.reduce_axis((0, extent), name=name)


def clamp(index, extent):
    return tirx.max(tirx.min(index, extent - 1), 0)


def inside(guard, value):
    return tirx.if_then_else(guard, value, tirx.const(0.0, "float64"))


def whole(value):
    """The integer below a value."""
    return tirx.floor(value).astype("int32")


# Stencils


@kernel
def convolution_1d(inputs):
    x, w, r = inputs.reals("x", 9), inputs.reals("w", 3), loop(3)
    return te.compute((7,), lambda i: te.sum(x[i + r] * w[r], axis=r))


@kernel
def convolution_1d_repeated_borders(inputs):
    x, w, r = inputs.reals("x", 9), inputs.reals("w", 5), loop(5)
    return te.compute((9,), lambda i: te.sum(x[clamp(i + r - 2, 9)] * w[r], axis=r))


@kernel
def convolution_1d_periodic(inputs):
    x, w, r = inputs.reals("x", 7), inputs.reals("w", 3), loop(3)
    return te.compute((7,), lambda i: te.sum(x[tirx.floormod(i + r - 1, 7)] * w[r], axis=r))


@kernel
def convolution_2d_mirrored_borders(inputs):
    x, w, r, q = inputs.reals("x", 5, 6), inputs.reals("w", 3, 3), loop(3), loop(3, "q")

    def mirrored(index, extent):
        index = tirx.Select(index < 0, -index, index)
        return tirx.Select(index >= extent, 2 * extent - 2 - index, index)

    return te.compute(
        (5, 6),
        lambda y, z: te.sum(
            x[mirrored(y + r - 1, 5), mirrored(z + q - 1, 6)] * w[r, q], axis=[r, q]
        ),
    )


@kernel
def convolution_of_images_and_filters(inputs):
    x, w = inputs.reals("x", 2, 3, 6, 5), inputs.reals("w", 4, 3, 3, 3)
    b, c, r, q = inputs.reals("b", 4), loop(3, "c"), loop(3), loop(3, "q")
    y = te.compute(
        (2, 4, 4, 3),
        lambda n, k, i, j: te.sum(x[n, c, i + r, j + q] * w[k, c, r, q], axis=[c, r, q]),
    )
    return te.compute(y.shape, lambda n, k, i, j: tirx.max(y[n, k, i, j] + b[k], 0.0))


@kernel
def separable_blurs(inputs):
    """Each reads the one before at three places."""
    y = inputs.reals("x", 6, 7)
    for _ in range(3):
        rows = te.compute((6, 7), _blurred_rows(y))
        y = te.compute((6, 7), _blurred_columns(rows))
    return y


def _blurred_rows(x):
    return lambda i, j: 0.25 * x[clamp(i - 1, 6), j] + 0.5 * x[i, j] + 0.25 * x[clamp(i + 1, 6), j]


def _blurred_columns(x):
    return lambda i, j: (x[i, clamp(j - 1, 7)] + x[i, j] + x[i, clamp(j + 1, 7)]) / 3.0


@kernel
def unsharp_mask(inputs):
    x, strength = inputs.reals("x", 6, 7), inputs.reals("strength")
    blurred = te.compute((6, 7), _blurred_columns(x))
    return te.compute((6, 7), lambda i, j: x[i, j] + strength() * (x[i, j] - blurred[i, j]))


# Resampling


@kernel
def down_sampling(inputs):
    x, r, q = inputs.reals("x", 8, 6), loop(2), loop(2, "q")
    return te.compute((4, 3), lambda i, j: te.sum(x[2 * i + r, 2 * j + q] * 0.25, axis=[r, q]))


@kernel
def up_sampling_linear(inputs):
    x = inputs.reals("x", 4, 3)

    def value(i, j):
        near = x[tirx.floordiv(i, 2), tirx.floordiv(j, 2)]
        far = x[clamp(tirx.floordiv(i + 1, 2), 4), clamp(tirx.floordiv(j + 1, 2), 3)]
        return 0.75 * near + 0.25 * far

    return te.compute((8, 6), value)


@kernel
def pyramid(inputs):
    """Down and up again, and the difference to the original."""
    x, r = inputs.reals("x", 8), loop(2)
    coarse = te.compute((4,), lambda i: te.sum(0.5 * x[2 * i + r], axis=r))
    return te.compute((8,), lambda i: tirx.tanh(x[i] - coarse[tirx.floordiv(i, 2)]))


@kernel
def warp_by_a_field(inputs):
    """Linear interpolation at places that are themselves inputs."""
    x, field = inputs.reals("x", 8), inputs.reals("field", 10, low=0.1, high=6.9)

    def value(i):
        place = field[i]
        left = clamp(whole(place), 7)
        part = place - left.astype("float64")
        return x[left] * (1.0 - part) + x[left + 1] * part

    return te.compute((10,), value)


@kernel
def warp_by_a_polynomial(inputs):
    """The places are a non-linear function of the position: no index map to invert."""
    x = inputs.reals("x", 10)
    return te.compute((6,), lambda i: x[tirx.floormod(i * i + 1, 10)] * x[clamp(i * i, 10)])


@kernel
def bilateral_slicing(inputs):
    """A grid read at positions in space and in a guide's value, by trilinear interpolation."""
    grid = inputs.reals("grid", 3, 3, 4)
    guide = inputs.reals("guide", 5, 5, low=0.05, high=0.95)
    r, q, t = loop(2), loop(2, "q"), loop(2, "t")

    def weight(offset, part):
        return tirx.Select(tirx.EQ(offset, 0), 1.0 - part, part)

    def value(i, j):
        places = [i.astype("float64") * 0.4, j.astype("float64") * 0.4, guide[i, j] * 3.0]
        cells = [clamp(whole(p), extent) for p, extent in zip(places, grid.shape, strict=True)]
        parts = [p - c.astype("float64") for p, c in zip(places, cells, strict=True)]
        offsets = [r.var, q.var, t.var]
        at = [clamp(c + o, int(e)) for c, o, e in zip(cells, offsets, grid.shape, strict=True)]
        total = grid(*at)
        for offset, part in zip(offsets, parts, strict=True):
            total = total * weight(offset, part)
        return te.sum(total, axis=[r, q, t])

    return te.compute((5, 5), value)


# Scatter, gather, histograms


@kernel
def gather_by_integers(inputs):
    x, at = inputs.reals("x", 6, 4), inputs.integers("at", 9, below=6)
    return te.compute((9, 4), lambda i, j: x[at[i], j] * x[at[i], 3 - j])


@kernel
def sparse_matrix_times_vector(inputs):
    """Three elements in each row; their columns are data."""
    values, x = inputs.reals("values", 5, 3), inputs.reals("x", 7)
    columns, r = inputs.integers("columns", 5, 3, below=7), loop(3)
    return te.compute((5,), lambda i: te.sum(values[i, r] * x[columns[i, r]], axis=r))


@kernel
def scatter_as_a_sum(inputs):
    """Each element goes to a place that is data, as a reduction that asks who comes here."""
    x, to, r = inputs.reals("x", 8), inputs.integers("to", 8, below=5), loop(8)
    return te.compute((5,), lambda i: te.sum(inside(tirx.EQ(to[r], i), x[r]), axis=r))


@kernel
def soft_histogram(inputs):
    """Weights of the two bins beside each value."""
    x, r = inputs.reals("x", 10, low=0.1, high=3.9), loop(10)

    def weight(distance):
        return tirx.max(1.0 - tirx.abs(distance), 0.0)

    return te.compute((5,), lambda b: te.sum(weight(x[r] - b.astype("float64")), axis=r))


@kernel
def histogram_equalized(inputs):
    """Cumulated counts, read by the value that was counted."""
    x, level = inputs.reals("x", 8), inputs.integers("level", 8, below=4)
    r, s = loop(8), loop(4, "s")
    counts = te.compute((4,), lambda b: te.sum(inside(tirx.EQ(level[r], b), x[r] * x[r]), axis=r))
    summed = te.compute((4,), lambda b: te.sum(inside(s <= b, counts[s]), axis=s))
    return te.compute((8,), lambda i: summed[level[i]] * x[i])


# Updates and reductions


@kernel
def update_of_a_column(inputs):
    """What an update of part of a tensor is: the rest stays."""
    x, y = inputs.reals("x", 4, 5), inputs.reals("y", 4)
    updated = te.compute(
        (4, 5), lambda i, j: tirx.if_then_else(tirx.EQ(j, 2), x[i, j] * y[i], x[i, j])
    )
    return te.compute((4, 5), lambda i, j: updated[i, j] * updated[i, 2])


@kernel
def update_of_a_triangle(inputs):
    x = inputs.reals("x", 4, 4)

    def value(i):
        r = te.reduce_axis((0, i + 1), name="r")
        return te.sum(x[i, r] * x[r, i], axis=r)

    return te.compute((4,), value)


@kernel
def nested_reductions(inputs):
    """Normalization: a mean and a variance inside a sum."""
    x, r, s, t = inputs.reals("x", 3, 6), loop(6), loop(6, "s"), loop(6, "t")
    mean = te.compute((3,), lambda i: te.sum(x[i, r] / 6.0, axis=r))
    variance = te.compute(
        (3,), lambda i: te.sum((x[i, s] - mean[i]) * (x[i, s] - mean[i]) / 6.0, axis=s)
    )
    normal = te.compute((3, 6), lambda i, j: (x[i, j] - mean[i]) / tirx.sqrt(variance[i] + 1e-3))
    return te.compute((3,), lambda i: te.sum(normal[i, t] * normal[i, t] * normal[i, t], axis=t))


@kernel
def greatest_of_windows(inputs):
    x, r = inputs.reals("x", 9), loop(3)
    return te.compute((4,), lambda i: te.max(x[2 * i + r], axis=r))


@kernel
def pyramid_of_products(inputs):
    product = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1.0, t))
    x, r = inputs.reals("x", 4, 3), loop(3)
    rows = te.compute((4,), lambda i: product(x[i, r] + 0.5, axis=r))
    s = loop(4, "s")
    return te.compute((), lambda: product(rows[s], axis=s))


@kernel
def masked_division(inputs):
    """Where the divisor is small the quotient is not taken; neither is its derivative."""
    x, y = inputs.reals("x", 8), inputs.reals("y", 8)
    return te.compute((8,), lambda i: tirx.if_then_else(y[i] > 0.1, x[i] / tirx.sqrt(y[i]), x[i]))


# Recursive filters


@kernel
def recursive_filter(inputs):
    x, a = inputs.reals("x", 7, 3), inputs.reals("a")
    state = te.placeholder((7, 3), "float64", name="state")
    first = te.compute((1, 3), lambda _, i: x[0, i])
    update = te.compute((7, 3), lambda t, i: a() * state[t - 1, i] + (1.0 - a()) * x[t, i])
    return te.scan(first, update, state, [x, a])


@kernel
def summed_area_table(inputs):
    """Two recurrences, one along each dimension."""
    x = inputs.reals("x", 4, 4)
    rows = _cumulated(lambda t, i: x[t, i], x)
    return _cumulated(lambda t, i: rows[i, t], rows)


def _cumulated(element, *reads):
    state = te.placeholder((4, 4), "float64", name="state")
    first = te.compute((1, 4), lambda t, i: element(0, i))
    update = te.compute((4, 4), lambda t, i: state[t - 1, i] + element(t, i))
    return te.scan(first, update, state, list(reads))


@kernel
def second_order_resonator(inputs):
    """A filter with feedback from two steps back."""
    x, a = inputs.reals("x", 8, 2), inputs.reals("a", 2)
    state = te.placeholder((8, 2), "float64", name="state")
    first = te.compute((2, 2), lambda t, i: x[t, i])
    update = te.compute(
        (8, 2), lambda t, i: a[0] * state[t - 1, i] + a[1] * state[t - 2, i] + x[t, i]
    )
    return te.scan(first, update, state, [x, a])


@pytest.mark.parametrize("name", KERNELS)
def test_gradient_agrees_with_differences(name):
    inputs = Inputs()
    output = KERNELS[name](inputs)
    by = [tensor for tensor, _ in inputs.known if str(tensor.dtype) == "float64"]
    found = judge(Program([output], by, inputs.known), np.random.default_rng(0))
    assert found == SMOOTH
