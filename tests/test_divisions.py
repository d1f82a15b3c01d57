"""Divisions of what falls: the values that they have, through TVM's computation of addresses."""

import numpy as np
import pytest
import tvm
from tvm import relax, te

import graphgrad as gg
from graphgrad.divisions import with_exact_divisions
from tests.labels import label

VALUES = np.arange(12, dtype="float32")

INDICES = [
    lambda i, k: (5 - i) // 2,
    lambda i, k: (1 - i) % 3,
    lambda i, k: (2 - i * 2) % 4,
    lambda i, k: (5 - i % 6) // 2,
    lambda i, k: (i + 1) % -3 + 3,
    lambda i, k: (i + 1) // -3 + 4,
    lambda i, k: (2 - i + k) % 3,
    lambda i, k: ((7 - i) % 6) // 4,
    lambda i, k: (i * 3 - i + 1 - i * 3) % 3,
]


def run(change, index):
    x = te.placeholder((12,), "float32", name="x")
    y = te.compute((6, 1), lambda i, k: x[index(i, k)], name="y")
    result = tvm.runtime.tensor(np.full((6, 1), np.nan, "float32"))
    tvm.compile(change(te.create_prim_func([x, y])), "llvm")(tvm.runtime.tensor(VALUES), result)
    return result.numpy()[:, 0]


@pytest.mark.parametrize("index", INDICES, ids=range(len(INDICES)))
def test_indices_that_fall(index):
    expected = [VALUES[index(i, 0)] for i in range(6)]
    np.testing.assert_array_equal(run(with_exact_divisions, index), expected)


def test_tvm_itself_loses_a_constant():
    """If this fails, TVM has mended it, and nothing needs to be rewritten any more."""
    assert run(lambda func: func, INDICES[0]).tolist() == [2, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("repeated", [relax.op.repeat, relax.op.tile], ids=label)
def test_flips_of_what_is_repeated(repeated):
    """Their indices meet when one is computed inside the other."""
    is_tile = repeated is relax.op.tile
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(repeated(x, [2]) if is_tile else repeated(x, 2, 0))
        builder.emit_func_output(builder.emit(relax.op.flip(y, 0)))
    machine = relax.VirtualMachine(gg.compile(builder.get(), gg.target("llvm")), tvm.cpu())
    given = machine["main"](tvm.runtime.tensor(VALUES[:3])).numpy()
    again = np.tile(VALUES[:3], 2) if is_tile else np.repeat(VALUES[:3], 2)
    np.testing.assert_array_equal(given, again[::-1])
