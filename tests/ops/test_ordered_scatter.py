"""Scatters for GPUs whose updates are ordered first; what they compute there is tested on a device.

See `tests/cuda/device/test_scatter.py`.
"""

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

import graphgrad as gg
from graphgrad.fallback.kernels.expressions import kernel_of
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.visits import nodes_in
from graphgrad.lower.pipeline import lower
from graphgrad.ops import index_restated, ordered_scatter
from graphgrad.ops.index import scatter
from graphgrad.ops.indexing import Indexing
from tests.lower.cuda.sources import TARGET
from tests.lower.kernel_programs import HOST
from tests.running import function

ROWS, COLUMNS, UPDATES = 7, 300, 64
TAKE = Indexing("take", 0)


def for_gpu():
    """The tensors of a scatter, as it is lowered for a GPU: index, updates and result."""
    index = te.placeholder((UPDATES,), "int64", name="index")
    updates = te.placeholder((UPDATES, COLUMNS), "float32", name="updates")
    with tvm.target.Target(TARGET):
        return index, updates, scatter(TAKE, None, index, updates, "add", (ROWS, COLUMNS))


def test_each_update_and_column_has_a_thread():
    *inputs, result = for_gpu()
    kernel = kernel_of(inputs, [result])
    parallel = [
        int(loop.extent)
        for loop in nodes_in(kernel.body, tirx.For)
        if int(loop.kind) == tirx.ForKind.PARALLEL
    ]
    assert UPDATES * COLUMNS in parallel
    assert COLUMNS not in parallel


def test_the_order_is_no_part_of_what_is_differentiated():
    index, updates, result = for_gpu()
    (restated,) = index_restated._restate_scatter(result.op)
    kernel = kernel_of([index, updates], [restated]).with_attr("global_symbol", "main")
    compiled = tvm.compile(tvm.IRModule({"main": kernel}), HOST)["main"]
    generator = np.random.default_rng(0)
    places = generator.integers(-ROWS - 1, ROWS + 1, UPDATES)
    values = generator.standard_normal((UPDATES, COLUMNS)).astype("float32")
    held = to_tensor(np.zeros((ROWS, COLUMNS), "float32"))
    compiled(to_tensor(places), to_tensor(values), held)
    inside = (places >= -ROWS) & (places < ROWS)
    expected = np.zeros((ROWS, COLUMNS))
    np.add.at(expected, places[inside] % ROWS, values[inside])
    np.testing.assert_allclose(held.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("indexing", "shape", "index", "updates", "expected"),
    [
        (TAKE, [7, 5], [4, 8], [4, 8, 5], True),
        (TAKE, [7, 5], [31], [31, 5], False),
        (TAKE, [0, 5], [64], [64, 5], False),
        (TAKE, [7, 5], [tirx.Var("n", "int64")], [64, 5], False),
        (Indexing("nd", 0), [7, 6, 5], [64, 2], [64, 5], True),
        (Indexing("nd", 1), [7, 6, 5], [7, 64, 1], [7, 64, 5], False),
        (Indexing("nd", 0), [7, 5], [64, 1], [60, 5], False),
        (Indexing("elements", 0), [7, 5], [64, 5], [64, 5], False),
        (Indexing("take", 1), [2**16, 2**16], [64], [2**16, 64], False),
    ],
)
def test_which_are_ordered(indexing, shape, index, updates, expected):
    assert ordered_scatter.pays(indexing, shape, index, updates) == expected


def test_the_gradient_of_a_table_without_columns_is_lowered():
    def build(builder, table, index):
        return builder.emit(relax.op.take(table, index, axis=0, mode="clip"))

    mod = function(build, ((ROWS, 0), "float32"), ((UPDATES,), "int64"))
    assert lower(gg.vjp(mod, "main"), TARGET).functions
