"""Squares transposed in registers: every number in its place."""

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from graphgrad.lower.arrays import to_tensor
from graphgrad.lower.transpose import transposed
from tests.lower.kernels import HOST


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
@pytest.mark.parametrize("side", [2, 4, 8, 16])
def test_rows_become_columns(side, dtype):
    def row(number):
        return [number, tirx.Ramp(0, 1, side)]

    source, target = (tirx.decl_buffer([side, side], dtype, name) for name in ("source", "target"))
    statements, columns = transposed([tirx.BufferLoad(source, row(n)) for n in range(side)])
    stores = [tirx.BufferStore(target, column, row(n)) for n, column in enumerate(columns)]
    body = tirx.SeqStmt([*statements, *stores])
    root = SBlockRealize([], tirx.const(True, "bool"), SBlock([], [], [], "root", body))
    func = tirx.PrimFunc([source, target], root).with_attr("global_symbol", "main")
    given = (np.arange(side * side) % 127).reshape(side, side).astype(dtype)
    result = to_tensor(np.zeros_like(given))
    tvm.compile(tvm.IRModule({"main": func}), HOST)["main"](to_tensor(given), result)
    assert (result.numpy() == given.T).all()
