"""Positions along a row, in conditions and in values, as vectors that LLVM makes at once."""

import numpy as np
import tvm
from tvm import te, tirx

from graphgrad.lower.codegen.parallel import PIPELINE
from graphgrad.lower.cpu.schedule import schedule_loops
from tests.lower.kernel_programs import HOST, UNIT, tensor


def built(*tensors):
    kernel = schedule_loops(te.create_prim_func(list(tensors)), UNIT)
    mod = tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")})
    return tvm.compile(mod, target=HOST, tir_pipeline=PIPELINE)


def test_conditions_and_values():
    """A triangle, above which the elements are their own places."""
    x = tensor(128, 512)
    y = te.compute(
        x.shape, lambda i, j: tirx.Select(j <= i, x[i, j], (i * 512 + j).astype("float32"))
    )
    library = built(x, y)
    # Elements would be inserted one by one, in each of 16 lanes; a number in all lanes is one.
    lanes = library.mod.inspect_source("ll").count("insertelement")
    assert lanes < UNIT.lanes("float32")
    values = np.random.default_rng(0).standard_normal((128, 512)).astype("float32")
    found = tvm.runtime.tensor(np.zeros_like(values))
    library["kernel"](tvm.runtime.tensor(values), found)
    places = np.arange(128 * 512, dtype="float32").reshape(128, 512)
    np.testing.assert_array_equal(found.numpy(), np.where(np.tri(128, 512), values, places))


def test_indices_stay_addresses():
    """Strided and reversed reads, and one at a place that is computed from the position."""
    x = tensor(64, 1024)
    y = te.compute(
        (64, 512),
        lambda i, j: x[i, 2 * j] + x[i, 511 - j] + x[i, tirx.Select(j < i, j, j + 1)],
    )
    library = built(x, y)
    values = np.random.default_rng(0).standard_normal((64, 1024)).astype("float32")
    found = tvm.runtime.tensor(np.zeros((64, 512), "float32"))
    library["kernel"](tvm.runtime.tensor(values), found)
    i, j = np.mgrid[:64, :512]
    expected = values[i, 2 * j] + values[i, 511 - j] + values[i, np.where(j < i, j, j + 1)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_an_index_that_is_a_sum_of_a_number_of_each_lane():
    """A row that data choose for each element, and the place in it: no address."""
    x, row = tensor(32, 512), tensor(64, 512, dtype="int32")
    y = te.compute((64, 512), lambda i, j: te.exp(x[row[i, j], j]))
    library = built(x, row, y)
    generator = np.random.default_rng(0)
    values = generator.standard_normal((32, 512)).astype("float32")
    rows = generator.integers(0, 32, (64, 512)).astype("int32")
    found = tvm.runtime.tensor(np.zeros((64, 512), "float32"))
    library["kernel"](tvm.runtime.tensor(values), tvm.runtime.tensor(rows), found)
    np.testing.assert_allclose(found.numpy(), np.exp(values[rows, np.arange(512)]), rtol=2e-6)
