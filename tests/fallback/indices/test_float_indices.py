"""Indices that are computed with floats: integer divisions of the same values, or left alone."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback.indices.float_indices import replace_float_arithmetic
from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.walk import identity, is_load, postorder
from tests.fallback.index_maps import scaled
from tests.fallback.integers import integer


def axis(name, extent, low=0):
    return Axis(te.var(name), tirx.const(low, "int32"), tirx.const(extent, "int32"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("scale", "offset"),
    [
        (0.5, 0.0),
        (0.5, 0.5),
        (2.0, 0.0),
        (2.0, 0.5),
        (0.25, 0.5),
        (4.0, 0.5),
        (1.0, 0.0),
        (0.75, 0.0),
    ],
)
def test_floors_of_floats_become_integer_divisions(scale, offset, dtype):
    i = axis("i", 40, 3)
    index = replace_float_arithmetic(scaled(i.var, scale, offset, dtype), [i])
    assert all("float" not in str(node.ty) for node in postorder(index))
    for value in range(3, 43):
        expected = int(np.floor((value + offset) * scale - offset))
        assert integer(index, {identity(i.var): value}) == expected


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(lambda i: scaled(i, 1 / 3), id="a multiple of three may round either way"),
        pytest.param(lambda i: tirx.floor(tirx.exp(i.astype("float32"))).astype("int32"), id="exp"),
        pytest.param(
            lambda i: tirx.floor(i.astype("float32") * i.astype("float32")).astype("int32"),
            id="not linear",
        ),
        pytest.param(
            lambda i: tirx.round(i.astype("float32") * 0.5).astype("int32"), id="ties"
        ),
        pytest.param(
            lambda i: tirx.floor(i.astype("float32") * tirx.const(1e-44, "float32") * -0.01)
            .astype("int32"),
            id="underflow",
        ),
        pytest.param(lambda i: scaled(i + te.var("n"), 0.5), id="a size"),
    ],
)  # fmt: skip
def test_floats_that_are_not_certain_stay(index):
    i = axis("i", 40)
    before = index(i.var)
    assert replace_float_arithmetic(before, [i]).same_as(before)
    assert not any(is_load(node) for node in postorder(before))


def in_dtype(values, scale, offset, dtype):
    """Return the indices as numbers of a dtype give them, rounded after each operation."""
    kind = np.dtype(dtype).type
    moved = (values.astype(dtype) + kind(offset)) * kind(scale)
    return np.floor(moved - kind(offset)).astype(int)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_random_scales_give_what_numbers_of_the_dtype_do(dtype):
    """Whatever is replaced agrees everywhere; what rounding might change is left alone."""
    generator = np.random.default_rng(1)
    replaced = 0
    for _ in range(60):
        source, target = generator.integers(1, 20, 2)
        scale, offset = source / target, generator.choice([0.0, 0.5])
        i = axis("i", int(target))
        before = scaled(i.var, scale, offset, dtype)
        after = replace_float_arithmetic(before, [i])
        if after.same_as(before):
            continue
        replaced += 1
        values = np.arange(target)
        given = [int(integer(after, {identity(i.var): value})) for value in values]
        assert given == in_dtype(values, scale, offset, dtype).tolist()
    assert replaced > 20
