"""Squares transposed in registers: every number in its place."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.cpu.register_transpose import transposed
from tests.lower.kernel_programs import HOST


def square(side, dtype):
    """Return a kernel that transposes a square."""

    def row(number):
        return [number, tirx.Ramp(0, 1, side)]

    source, target = (tirx.decl_buffer([side, side], dtype, name) for name in ("source", "target"))
    statements, columns = transposed([tirx.BufferLoad(source, row(n)) for n in range(side)])
    stores = [tirx.BufferStore(target, column, row(n)) for n, column in enumerate(columns)]
    body = tirx.SeqStmt([*statements, *stores])
    root = SBlockRealize([], tirx.const(True, "bool"), SBlock([], [], [], "root", body))
    return tirx.PrimFunc([source, target], root).with_attr("global_symbol", "main")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
@pytest.mark.parametrize("side", [2, 4, 8, 16])
def test_rows_become_columns(side, dtype):
    given = (np.arange(side * side) % 127).reshape(side, side).astype(dtype)
    result = to_tensor(np.zeros_like(given))
    compiled = tvm.compile(tvm.IRModule({"main": square(side, dtype)}), HOST)
    compiled["main"](to_tensor(given), result)
    assert (result.numpy() == given.T).all()


@pytest.mark.parametrize("side", [2, 4, 8, 16, 32])
def test_tvm_makes_few_exchanges_more_of_it(side):
    """It puts what variables are bound to in their place, wherever they are read."""
    simplified = tirx.transform.StmtSimplify()(tvm.IRModule({"main": square(side, "float32")}))
    exchanges = []
    tvm_ffi.structural_walk(simplified["main"].body, (tirx.Shuffle, exchanges.append))
    steps = side.bit_length() - 1
    assert len(exchanges) <= 1.5 * side * steps
