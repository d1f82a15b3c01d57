"""Transpositions around products: which are moved, and that nothing else changes."""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.lower.cuda.library import transpositions
from graphgrad.lower.cuda.library.transpositions import move_transpositions
from tests.running import function, run

GPU = gg.target({"kind": "cuda", "arch": "sm_90"})
HALF, SINGLE = "bfloat16", "float32"
op = relax.op


@pytest.fixture(autouse=True)
def _library(monkeypatch):
    monkeypatch.setattr(transpositions, "absence", lambda target: None)


def moved(mod):
    return move_transpositions(mod, GPU)


def ops(mod):
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return [str(v.op.name).removeprefix("relax.") for v in values if isinstance(v, relax.Call)]


def agree(before, after, *shapes):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape, dtype in shapes]
    for old, new in zip(run(before, "main", *arrays), run(after, "main", *arrays), strict=True):
        assert old.shape == new.shape
        assert old.dtype == new.dtype
        np.testing.assert_allclose(old.astype("f4"), new.astype("f4"), rtol=2e-2, atol=2e-2)


def test_a_linear_layer_in_mixed_precision():
    def build(b, x, weight, ct):
        turned = b.emit(op.astype(b.emit(op.permute_dims(weight)), HALF))
        y = b.emit(op.matmul(x, turned))
        slope = b.emit(op.matmul(b.emit(op.permute_dims(x)), ct, out_dtype=SINGLE))
        slope = b.emit(op.astype(b.emit(op.astype(slope, HALF)), SINGLE))
        return b.emit(relax.Tuple([y, b.emit(op.permute_dims(slope))]))

    shapes = ((6, 4), HALF), ((5, 4), SINGLE), ((6, 5), HALF)
    mod = function(build, *shapes)
    after = moved(mod)
    layer = ["astype", "permute_dims", "matmul"]
    assert ops(after) == [*layer, "permute_dims", "matmul", "astype", "astype"]
    agree(mod, after, *shapes)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_a_transposed_product(left, right):
    def build(b, x, y):
        x = b.emit(op.permute_dims(x)) if left else x
        y = b.emit(op.permute_dims(y)) if right else y
        return b.emit(relax.Tuple([b.emit(op.permute_dims(b.emit(op.matmul(x, y)), [1, 0]))]))

    shapes = ((4, 6) if left else (6, 4), SINGLE), ((5, 4) if right else (4, 5), SINGLE)
    mod = function(build, *shapes)
    after = moved(mod)
    assert ops(after) == ["permute_dims"] * ((not left) + (not right)) + ["matmul"]
    agree(mod, after, *shapes)


def read_twice(b, x, y):
    product = b.emit(op.matmul(x, y))
    return [b.emit(op.permute_dims(product)), b.emit(op.negative(product))]


def cast_read_twice(b, x, y):
    product = b.emit(op.astype(b.emit(op.matmul(x, y)), HALF))
    return [b.emit(op.permute_dims(product)), product]


def stacks(b, x, y):
    x, y = (b.emit(op.expand_dims(each, 0)) for each in (x, y))
    return [b.emit(op.permute_dims(b.emit(op.matmul(x, y)), [0, 2, 1]))]


def something_between(b, x, y):
    return [b.emit(op.permute_dims(b.emit(op.negative(b.emit(op.matmul(x, y))))))]


def in_order(b, x, y):
    return [b.emit(op.permute_dims(b.emit(op.matmul(x, y)), [0, 1]))]


def of_what_is_computed(b, x, y):
    return [b.emit(op.astype(b.emit(op.permute_dims(b.emit(op.negative(x)))), HALF)), y]


@pytest.mark.parametrize(
    "build",
    [read_twice, cast_read_twice, stacks, something_between, in_order, of_what_is_computed],
)
def test_what_stays(build):
    mod = function(
        lambda b, x, y: b.emit(relax.Tuple(build(b, x, y))), ((4, 4), SINGLE), ((4, 4), SINGLE)
    )
    assert ops(moved(mod)) == ops(mod)


def test_without_a_library(monkeypatch):
    monkeypatch.setattr(transpositions, "absence", lambda target: "none")
    mod = function(
        lambda b, x, y: b.emit(op.permute_dims(b.emit(op.matmul(x, y)))), ((4, 4), SINGLE),
        ((4, 4), SINGLE),
    )  # fmt: skip
    assert moved(mod).same_as(mod)
