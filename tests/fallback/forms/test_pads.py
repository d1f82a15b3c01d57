"""Borders of zeros in place of conditions: the same sums, with as few stages as serve."""

import numpy as np
import pytest
from tvm import te, tirx, topi

from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import operations
from graphgrad.fallback.kinds import Kind, kind_of
from tests.fallback.interpreter import evaluate


def convolved(extent, taps, stride, dilation, before):
    """Return a guarded sum of products of an input with weights, and both."""
    x = te.placeholder((extent,), "float64", name="x")
    w = te.placeholder((taps,), "float64", name="w")
    length = max((extent + 2 * before - dilation * (taps - 1) - 1) // stride + 1, 1)
    k = te.reduce_axis((0, taps), "k")

    def body(i):
        at = stride * i + dilation * k - before
        inside = tirx.all(at >= 0, at < extent)
        return te.sum(tirx.if_then_else(inside, x[at], 0.0) * w[k], k)

    return te.compute((length,), body, name="y"), x, w


def stages(tensors, kind):
    return [op for op in operations(*tensors) if kind_of(op) is kind]


@pytest.mark.parametrize("seed", range(12))
def test_sums_with_borders_are_those_under_conditions(seed):
    generator = np.random.default_rng(seed)
    extent, taps = (int(n) for n in generator.integers(1, [9, 5]))
    stride, dilation, before = (int(n) for n in generator.integers([1, 1, 0], [4, 3, 4]))
    y, x, w = convolved(extent, taps, stride, dilation, before)
    head = te.placeholder(y.shape, "float64", name="head")
    known = [(t, generator.standard_normal([int(e) for e in t.shape])) for t in (x, w, head)]
    padded, guarded = (te_gradient(y, [x, w], head, pads=pads) for pads in (True, False))
    assert not stages(padded, Kind.REDUCE)
    for given, expected in zip(evaluate(padded, known), evaluate(guarded, known), strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-12, atol=1e-12)


def test_conditions_become_a_border_or_stay():
    y, x, _ = convolved(8, 3, 1, 1, 1)
    padded, guarded = (te_gradient(y, x, pads=pads) for pads in (True, False))
    assert stages(padded, Kind.CONTRACTION) and not stages(padded, Kind.REDUCE)
    assert stages(guarded, Kind.REDUCE) and not stages(guarded, Kind.CONTRACTION)
    assert not stages(guarded, Kind.PAD)


def test_a_border_has_the_places_that_are_read_and_no_more():
    y, x, _ = convolved(8, 3, 1, 1, 1)
    head = te.placeholder(y.shape, "float64", name="head")
    (border,) = stages(te_gradient(y, x, head), Kind.PAD)
    assert [int(extent) for extent in border.output(0).shape] == [10]


def test_residue_classes_share_a_border():
    """Three residues of the place, each by a contraction of its own."""
    y, x, _ = convolved(12, 7, 3, 1, 3)
    head = te.placeholder(y.shape, "float64", name="head")
    gradient = te_gradient(y, x, head)
    assert len(stages(gradient, Kind.RESIDUE_CLASS)) == 3
    assert len([op for op in stages(gradient, Kind.PAD) if op.input_tensors[0].same_as(head)]) == 1


def test_what_is_read_inside_alone_needs_no_border():
    x = te.placeholder((3, 4), "float64", name="x")
    weights = te.placeholder((4, 2), "float64", name="weights")
    gradients = te_gradient(topi.matmul(x, weights), [x, weights])
    assert not stages(gradients, Kind.PAD)
    assert len(stages(gradients, Kind.CONTRACTION)) == 2
