"""Reductions of columns in one launch: tiles of results, parts of terms, what goes with them."""

import pytest
from tvm import te, topi

from tests.labels import label
from tests.lower.cuda.running import run
from tests.lower.kernel_programs import tensor


def launches(result):
    return result.text.count('thread="blockIdx.x"')


def sums(x, term):
    """The sum of terms over all axes but the last, which is kept alone."""
    axes = [te.reduce_axis((0, n), "k") for n in x.shape[:-1]]
    return te.compute((x.shape[-1],), lambda c: te.sum(term(x(*axes, c), c), axis=axes), name="s")


@pytest.mark.parametrize(
    "shape",
    [(4099, 64), (1031, 40), (2048, 8), (3000, 3), (2000, 264), (9, 17, 23, 24), (40000, 1)],
    ids=label,
)
def test_tiles_are_whole_or_not(shape):
    x = tensor(*shape)
    result = run([x], [sums(x, lambda v, _: v)])
    result.agree()
    assert launches(result) == 1


def test_two_sums_and_the_maps_of_them():
    x = tensor(3000, 24)
    scale, bias = tensor(24, name="scale"), tensor(24, name="bias")
    total, squares = sums(x, lambda v, _: v), sums(x, lambda v, _: v * v)
    mean = te.compute((24,), lambda c: total[c] / 3000.0, name="mean")
    spread = te.compute((24,), lambda c: squares[c] / 3000.0 - mean[c] * mean[c], name="spread")
    slope = te.compute((24,), lambda c: scale[c] / te.sqrt(spread[c] + 1.0), name="slope")
    offset = te.compute((1, 24), lambda _, c: bias[c] - mean[c] * slope[c], name="offset")
    result = run([x, scale, bias], [mean, slope, offset])
    result.agree()
    assert launches(result) == 1


def test_samples_are_taken_by_each_thread():
    x = tensor(3000, 40)
    k = te.reduce_axis((0, 8), "k")
    sample = te.compute((40,), lambda c: te.sum(x[k * 100, c], axis=k), name="sample")
    total = sums(x, lambda v, c: (v - sample[c]) * (v - sample[c]))
    both = te.compute((40,), lambda c: total[c] + sample[c], name="both")
    result = run([x], [both])
    result.agree()
    assert launches(result) == 1


def test_a_sample_that_something_else_reads_has_a_launch():
    x = tensor(3000, 40)
    k = te.reduce_axis((0, 8), "k")
    sample = te.compute((40,), lambda c: te.sum(x[k * 100, c], axis=k), name="sample")
    total = sums(x, lambda v, c: v - sample[c])
    turned = te.compute((40,), lambda c: sample[39 - c] * 2.0, name="turned")
    result = run([x], [total, turned])
    result.agree()
    assert launches(result) > 1


@pytest.mark.parametrize("read", [lambda c: 39 - c, lambda c: 0, lambda c: (c + 1) % 40])
def test_a_map_that_reads_results_of_others_waits_for_all(read):
    x = tensor(3000, 40)
    total = sums(x, lambda v, _: v)
    other = te.compute((40,), lambda c: total[read(c)] * te.exp(total[c] * 0.001), name="other")
    result = run([x], [other])
    result.agree()
    assert launches(result) > 1


def test_a_map_of_a_later_reduction_waits_for_it():
    x = tensor(3000, 40)
    total = sums(x, lambda v, _: v)
    k = te.reduce_axis((0, 40), "k")
    whole = te.compute((1,), lambda _: te.sum(total[k], axis=k), name="whole")
    share = te.compute((40,), lambda c: total[c] * whole[0], name="share")
    run([x], [share]).agree()


def test_extrema():
    x = tensor(3000, 40)
    result = run([x], [topi.max(x, 0), topi.min(x, 0)])
    result.agree()
