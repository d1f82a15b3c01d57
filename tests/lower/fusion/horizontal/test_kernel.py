"""The kernel of rows: it computes what its formula says, whatever the values are."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.fusion.horizontal.chain import Call, Chain
from graphgrad.lower.fusion.horizontal.flat import flat_map
from graphgrad.lower.fusion.horizontal.table_rows import TABLE_ROWS
from graphgrad.lower.target import target
from graphgrad.memory.stores import stored_parameters


def tensor(*shape):
    """Return a placeholder with 64-bit extents, as Relax makes them."""
    return te.placeholder(tuple(tirx.IntImm("int64", n) for n in shape), "float32", "x")


def scaled_larger(combine):
    """Return a map of stages: the larger of two elements, times that of two scalars."""
    x, y, a, b = tensor(4), tensor(4), tensor(), tensor()
    number = te.compute((), lambda: te.max(a(), b()))
    larger = te.compute(x.shape, lambda i: te.max(x(i), y(i)))
    result = te.compute(x.shape, lambda i: combine(larger(i), number()))
    return flat_map(te.create_prim_func([x, y, a, b, result]))


def run(func, *arrays):
    built = tvm.tirx.build(
        tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target=target("llvm")
    )
    tensors = [to_tensor(np.array(array)) for array in arrays]
    built["main"](*tensors)
    return [tensor.numpy() for tensor in tensors]


COMBINATIONS = {
    "product": lambda a, b: a * b,
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "smaller": te.min,
}


@pytest.mark.parametrize("length", [3, 16, 70])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_larger_ones_of_scalars_and_of_elements(name, length):
    """TVM would simplify such values as if they were integers, if it saw them whole."""
    combine = COMBINATIONS[name]
    kernel = scaled_larger(combine)
    formula, _ = Chain([Call(kernel, [0, 1, 2, 3], 4, None)]).formula(lambda number: True)
    func = TABLE_ROWS.kernel_of(formula, [[[length]] * 3], ["float32"] * 2)
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal(length).astype("float32") for _ in range(2))
    a, b = np.float32(0.25), np.float32(0.5)
    found = run(func, a, b, x, y, np.zeros(length, "float32"))[-1]
    larger = np.maximum(x, y)
    expected = np.minimum(larger, b) if name == "smaller" else combine(larger, b)
    np.testing.assert_array_equal(found, expected)


def test_product_of_larger_ones_that_earlier_maps_make():
    x, y = tensor(4), tensor(4)
    larger = flat_map(
        te.create_prim_func([x, y, te.compute(x.shape, lambda i: te.max(x(i), y(i)))])
    )
    product = flat_map(te.create_prim_func([x, y, te.compute(x.shape, lambda i: x(i) * y(i))]))
    calls = [
        Call(larger, [0, 1], 2, None),
        Call(larger, [0, 3], 4, None),
        Call(product, [2, 4], 5, None),
    ]
    formula, cells = Chain(calls).formula(lambda number: number == 5)
    assert [cell.number for cell in cells] == [0, 1, 3, 5]
    func = TABLE_ROWS.kernel_of(formula, [[[37]] * 4], [])
    x, y, z = np.random.default_rng(0).standard_normal((3, 37)).astype("float32")
    found = run(func, x, y, z, np.zeros_like(x))[-1]
    np.testing.assert_array_equal(found, np.maximum(x, y) * np.maximum(x, z))


def test_the_alias_analysis_knows_what_is_stored_to_through_addresses():
    formula, _ = Chain([Call(scaled_larger(te.min), [0, 1, 2, 3], 4, None)]).formula(
        lambda number: True
    )
    func = TABLE_ROWS.kernel_of(formula, [[[8]] * 3, [[5]] * 3], ["float32"] * 2)
    scalars, results = {0, 1}, {6, 7}
    written = stored_parameters(func)
    assert written >= results and not written & scalars
