"""Marked segments are computed again in the backward pass, and gradients stay what they are."""

import numpy as np
from tvm import relax

import graphgrad as gg
from tests.frontend.graphs import random
from tests.running import F64, function, run

op, grad = relax.op, relax.op.grad
X, W = random(4, 4).astype(F64), random(4, 4, seed=1).astype(F64)


def layer(b, x, w):
    return b.emit(op.tanh(b.emit(op.matmul(x, w))))


def marked(b, x, w):
    """Two layers in a segment between two outside of it, one of which reads a value of it."""
    x = layer(b, x, w)
    inner = layer(b, b.emit(grad.start_checkpoint(x)), b.emit(grad.start_checkpoint(w)))
    y = b.emit(grad.end_checkpoint(layer(b, inner, w)))
    return b.emit(op.multiply(layer(b, y, w), b.emit(op.exp(inner))))


def unmarked(b, x, w):
    inner = layer(b, layer(b, x, w), w)
    return b.emit(op.multiply(layer(b, layer(b, inner, w), w), b.emit(op.exp(inner))))


def without_end(b, x, w):
    inner = layer(b, b.emit(grad.start_checkpoint(x)), w)
    return layer(b, inner, w)


def program(build):
    return function(build, ((4, 4), F64), ((4, 4), F64))


def count(mod, name):
    return mod["main_vjp"].script().count(f"R.{name}(")


def test_a_segment_is_computed_twice():
    expected, given = gg.vjp(program(unmarked)), gg.vjp(program(marked))
    assert count(expected, "tanh") == 4
    # What is marked as the end is kept; the matrix product and tanh before it, and the layer
    # inside, come again.
    assert count(given, "tanh") == 6
    for ours, theirs in zip(
        run(given, "main_vjp", X, W, X), run(expected, "main_vjp", X, W, X), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-13)


def test_a_segment_without_an_end_is_none():
    assert count(gg.vjp(program(without_end)), "tanh") == 2


def test_second_derivatives():
    def twice(build):
        once = gg.vjp(program(build), wrt="x1")
        return gg.vjp(once, func="main_vjp", wrt="x1")

    arrays = [X, W, X, X, X]
    ours, theirs = (run(twice(b), "main_vjp_vjp", *arrays) for b in (marked, unmarked))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)
