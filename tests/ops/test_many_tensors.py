"""Joins of many tensors, and cuts into many, are trees of kernels that have few."""

import numpy as np
import pytest
import tvm
from tvm import relax

from graphgrad.ir.tensor import Emitter
from graphgrad.lower.graph.legalize import legalize_ops
from graphgrad.ops import functional, shape
from tests.differences import assert_gradients
from tests.running import F64, function

op = relax.op


@pytest.fixture(autouse=True)
def three_at_most(monkeypatch):
    monkeypatch.setattr(functional, "MANY_TENSORS", 3)
    monkeypatch.setattr(shape, "MANY_TENSORS", 3)


def assert_few(mod):
    """Check that no kernel of a lowered module joins more than three tensors, or cuts into more."""
    kernels = [f for f in legalize_ops(mod).functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert max(len(kernel.params) for kernel in kernels) == 1 + 3


@pytest.mark.parametrize("count", [4, 9, 29])
@pytest.mark.parametrize("join, axis", [("concat", 0), ("concat", -1), ("stack", 0), ("stack", -1)])
def test_join(count, join, axis):
    shapes = [(2, 1 + i % 3 * (join == "concat" and axis == -1)) for i in range(count)]
    mod = function(
        lambda b, *x: b.emit(getattr(op, join)(list(x), axis=axis)), *((s, F64) for s in shapes)
    )
    assert_few(mod)
    x = [np.random.default_rng(i).standard_normal(s) for i, s in enumerate(shapes)]
    (y,) = assert_gradients(mod, *x)
    expected = np.concatenate(x, axis) if join == "concat" else np.stack(x, axis)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("sections", [4, 10, [1, 2, 4, 7, 11, 12, 15, 19]], ids=str)
@pytest.mark.parametrize("axis", [0, -1])
def test_split(sections, axis):
    extents = (20, 2) if axis == 0 else (2, 20)

    def cut(builder, x):
        parts = functional.split(Emitter(builder).lift(x), sections, axis)
        return builder.emit(relax.Tuple([part.expr for part in parts]))

    mod = function(cut, (extents, F64))
    assert_few(mod)
    x = np.random.default_rng(0).standard_normal(extents)
    for ours, theirs in zip(assert_gradients(mod, x), np.split(x, sections, axis), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_tuple_of_many_is_joined():
    """It is a variable, whose fields are read."""

    def turned(builder, x):
        parts = builder.emit(op.split(x, 10, axis=0))
        return builder.emit(op.concat(parts, axis=1))

    x = np.random.default_rng(0).standard_normal((20, 2))
    (y,) = assert_gradients(function(turned, ((20, 2), F64)), x)
    np.testing.assert_array_equal(y, np.concatenate(np.split(x, 10), axis=1))
