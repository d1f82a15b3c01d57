"""Reductions of windows by tiles of results: what they compute, and which reductions are not."""

import random

import pytest
from tvm import te, tirx, topi

from graphgrad.ir.visits import nodes_in
from graphgrad.memory.overwrite import may_overwrite
from tests.labels import label
from tests.lower.cuda.running import run
from tests.lower.kernel_programs import tensor


def long(*extents):
    """Extents of 64 bits, as Relax makes them."""
    return tuple(tirx.IntImm("int64", int(n)) for n in extents)


def windows(x, w, extents, strides, dilation, padding):
    """The sums over windows of images, in a border of zeros, with the channels last."""
    taps = [te.reduce_axis((0, n), "r") for n in long(*w.shape[:2])]

    def element(n, *rest):
        *at, c = rest
        places = [
            i * s + r * d - p
            for i, s, r, d, p in zip(at, strides, taps, dilation, padding, strict=True)
        ]
        inside = [
            condition
            for place, extent in zip(places, x.shape[1:3], strict=True)
            for condition in (place >= 0, place < extent)
        ]
        zero = tirx.const(0, x.dtype)
        value = tirx.if_then_else(tirx.all(*inside), x(n, *places, c), zero)
        return te.sum(value.astype("float32") * w(*taps, c).astype("float32"), axis=taps)

    return te.compute(long(x.shape[0], *extents, x.shape[3]), element, name="windows")


def read_at_once(result):
    """How many loads the threads of the only launch have in registers."""
    allocated = nodes_in(result.func.body, tirx.AllocBuffer)
    return sum(each.buffer.name.startswith("read") for each in allocated)


@pytest.mark.parametrize("seed", range(6))
def test_random_windows(seed):
    generator = random.Random(seed)
    rows, columns, channels = (generator.choice(n) for n in ((13, 16), (20, 23), (12, 24, 32)))
    taps = [generator.choice((2, 3, 5, 7)) for _ in range(2)]
    strides, dilation, padding = (
        [generator.choice(numbers) for _ in range(2)]
        for numbers in ((1, 1, 2), (1, 1, 2), (0, 1, 3))
    )
    images = -(-(1 << 15) // (rows * columns * channels))
    needed = [
        (n - 1) * s + (k - 1) * d + 1 - 2 * p
        for n, s, k, d, p in zip((rows, columns), strides, taps, dilation, padding, strict=True)
    ]
    dtype = generator.choice(("float32", "float16"))
    x = tensor(images, *needed, channels, dtype=dtype)
    w = tensor(*taps, channels, dtype=dtype, name="w")
    result = run([x, w], [windows(x, w, (rows, columns), strides, dilation, padding)])
    result.agree()
    assert (read_at_once(result) > 0) == (taps[1] > strides[1] or taps[0] > strides[0]), taps


def test_neighbors_read_what_they_share_once():
    x, w = tensor(2, 14, 32, 24), tensor(3, 3, 24, name="w")
    result = run([x, w], [windows(x, w, (14, 32), (1, 1), (1, 1), (1, 1))])
    result.agree()
    assert read_at_once(result) == 8 + 2 + 3  # of 8 neighbors 10 columns, and 3 weights


@pytest.mark.parametrize("columns", [32, 23])
def test_an_accumulator_is_overwritten(columns):
    x, w = tensor(2, 16, columns, 24), tensor(3, 3, 24, name="w")
    accumulator = tensor(2, 16, columns, 24, name="accumulator")
    total = windows(x, w, (16, columns), (1, 1), (1, 1), (1, 1))
    result = run([x, w, accumulator], [topi.add(total, accumulator)])
    result.agree()
    assert read_at_once(result)
    assert may_overwrite(result.func, result.func.params[2], result.func.params[3])


def test_long_sums_are_added_up_by_rows():
    x, w = tensor(1, 30, 26, 64), tensor(7, 7, 64, name="w")
    result = run([x, w], [windows(x, w, (30, 26), (1, 1), (1, 1), (3, 3))])
    result.agree()
    allocated = nodes_in(result.func.body, tirx.AllocBuffer)
    assert any(each.buffer.name.startswith("part") for each in allocated)


def test_maxima():
    x = tensor(2, 30, 40, 16)
    taps = [te.reduce_axis((tirx.IntImm("int64", 0), tirx.IntImm("int64", 3)), "r") for _ in "hw"]
    maxima = te.compute(
        long(2, 28, 38, 16),
        lambda n, h, w, c: te.max(x[n, h + taps[0], w + taps[1], c], axis=taps),
    )
    result = run([x], [maxima])
    result.agree()
    assert read_at_once(result)


@pytest.mark.parametrize(
    ("shape", "taps", "strides"),
    [((2, 40, 40, 24), 2, 2), ((2, 50, 50, 24), 3, 3), ((1, 6, 6, 24), 3, 1)],
    ids=label,
)
def test_windows_apart_and_small_ones_are_not_tiled(shape, taps, strides):
    x, w = tensor(*shape), tensor(taps, taps, shape[3], name="w")
    extents = [(n - taps) // strides + 1 for n in shape[1:3]]
    result = run([x, w], [windows(x, w, extents, (strides,) * 2, (1, 1), (0, 0))])
    result.agree()
    assert not read_at_once(result)


def test_places_that_are_read_are_not_known():
    x, places = tensor(4000, 8), tensor(4002, dtype="int64", name="places")
    k = te.reduce_axis((tirx.IntImm("int64", 0), tirx.IntImm("int64", 3)), "k")
    gathered = te.compute(
        long(4000, 8), lambda i, c: te.sum(x[tirx.abs(places[i + k]) % 4000, c], axis=k)
    )
    result = run([x, places], [gathered])
    result.agree()
    assert not read_at_once(result)
