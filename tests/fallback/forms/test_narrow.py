"""Blocks: what is read of a tensor is in them, and they are put where they belong."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from graphgrad.fallback.contribution import Contribution
from graphgrad.fallback.forms.narrow import Block, block_read, narrowed, placed
from graphgrad.fallback.guarded import Guarded
from graphgrad.fallback.indices.index_system import invert
from graphgrad.fallback.indices.linear_system import Axis
from tests.fallback.interpreter import evaluate


def axis(name, extent):
    return Axis(te.var(name, "int32"), tirx.const(0, "int32"), tirx.const(extent, "int32"))


@pytest.mark.parametrize(
    ("index", "points", "extent", "block"),
    [
        (lambda i: i, 4, 12, (0, 3)),
        (lambda i: i + 5, 4, 12, (5, 8)),
        (lambda i: 9 - i, 4, 12, (6, 9)),
        (lambda i: i + 1, 9, 12, (1, 9)),
        (lambda i: i + 1, 10, 12, None),  # 10 of 12 are nearly all
    ],
    ids=["first", "middle", "backwards", "limit", "most"],
)
def test_the_block_that_is_read(index, points, extent, block):
    loop, element = axis("i", points), axis("x", extent)
    found = block_read(invert([index(loop.var)], [loop], [element]), [element])
    assert found == (None if block is None else Block([block[0]], [block[1]]))


def test_a_block_of_two_dimensions():
    loops, element = [axis("i", 3), axis("j", 4)], [axis("x", 8), axis("y", 6)]
    i, j = (loop.var for loop in loops)
    inversion = invert([i + 2, j], loops, element)
    assert block_read(inversion, element) == Block([2, 0], [4, 3])


def test_a_tensor_of_unknown_shape_has_no_block():
    size = te.var("n", "int32")
    loop = axis("i", 3)
    element = Axis(te.var("x", "int32"), tirx.const(0, "int32"), size)
    assert block_read(invert([loop.var + 1], [loop], [element]), [element]) is None


def test_a_contribution_to_a_block_counts_from_its_first_element():
    tensor = te.placeholder((8, 6), "float32", name="t")
    loop = axis("i", 3)
    term = Guarded((), tirx.const(1.0, "float32"))
    whole = Contribution(tensor, [loop], [loop.var + 2, loop.var], [term], stage="stage")
    part = narrowed(whole, Block([2, 0], [4, 3]))
    assert [int(extent) for extent in part.tensor.shape] == [3, 4]
    assert str(part.tensor.dtype) == "float32" and part.terms == whole.terms
    simplify = tvm.sym.Analyzer().simplify
    assert [str(simplify(index)) for index in part.indices] == ["i", "i"]


@pytest.mark.parametrize(
    "block",
    [Block([2, 1], [4, 3]), Block([0, 0], [2, 5]), Block([5, 0], [7, 5])],
    ids=["inside", "at the start", "at the end"],
)
def test_a_block_is_put_in_place(block):
    rows, columns = (slice(f, e + 1) for f, e in zip(block.first, block.last, strict=True))
    expected = np.zeros((8, 6))
    values = np.random.default_rng(0).standard_normal(expected[rows, columns].shape)
    expected[rows, columns] = values
    tensor = te.placeholder(values.shape, "float64", name="block")
    shape = [tirx.const(extent, "int32") for extent in expected.shape]
    (found,) = evaluate([placed(tensor, block, shape)], [(tensor, values)])
    np.testing.assert_array_equal(found, expected)
