"""Transposed blocks: every element in its place."""

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.cpu.winograd.code import constant
from graphgrad.lower.cpu.winograd.register_transpose import turned
from tests.lower.kernel_programs import HOST


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_it_transposes(lanes):
    rows, columns = 2 * lanes, 3 * lanes
    source = tirx.decl_buffer([constant(rows), constant(columns)], "float32", "source")
    target = tirx.decl_buffer([constant(columns), constant(rows)], "float32", "target")
    body = turned(
        rows, columns, lanes, lambda i, j: (source, [i, j]), lambda i, j: (target, [j, i])
    )
    root = SBlockRealize([], tirx.const(True, "bool"), SBlock([], [], [], "root", body))
    func = tirx.PrimFunc([source, target], root).with_attr("global_symbol", "main")
    given = np.arange(rows * columns, dtype="float32").reshape(rows, columns)
    result = to_tensor(np.zeros((columns, rows), "float32"))
    tvm.compile(tvm.IRModule({"main": func}), HOST)["main"](to_tensor(given), result)
    assert (result.numpy() == given.T).all()
