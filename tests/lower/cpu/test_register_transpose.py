"""Transposes in registers: every number in its place."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from graphgrad.fallback import create_prim_func
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.kernel_structure import stages
from graphgrad.ir.loops import block, scratch
from graphgrad.lower.cpu.contraction import replace_stages
from graphgrad.lower.cpu.register_transpose import transpose_matrix, transpose_square, transposed
from tests.guarded_memory import guarded_tensor
from tests.lower.kernel_programs import HOST, tensor
from tests.running import compile_library


def square(side, dtype):
    """Return a kernel that transposes a square."""

    def row(number):
        return [number, tirx.Ramp(0, 1, side)]

    source, target = (tirx.decl_buffer([side, side], dtype, name) for name in ("source", "target"))
    statements, columns = transposed([tirx.BufferLoad(source, row(n)) for n in range(side)])
    stores = [tirx.BufferStore(target, column, row(n)) for n, column in enumerate(columns)]
    root = block("root", *statements, *stores)
    return tirx.PrimFunc([source, target], root).with_attr("global_symbol", "main")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
@pytest.mark.parametrize("side", [2, 4, 8, 16])
def test_rows_become_columns(side, dtype):
    given = (np.arange(side * side) % 127).reshape(side, side).astype(dtype)
    result = to_tensor(np.zeros_like(given))
    compiled = compile_library(square(side, dtype), HOST)
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


@pytest.mark.parametrize("side", [4, 8, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_a_square(side, dtype):
    x = tensor(side, side, dtype=dtype)
    y = te.compute((side, side), lambda i, j: x[j, i], name="y")
    func = create_prim_func([x, y])
    (stage,) = stages(func)
    source, result = stage.loads[0].source, stage.stores[0].buffer
    whole = tirx.Ramp(tirx.const(0, "int64"), tirx.const(1, "int64"), side)

    def read(row, lane):
        return tirx.BufferLoad(source, [row, lane])

    def store(column, values):
        return tirx.BufferStore(result, values, [tirx.const(column, "int64"), whole])

    nest = transpose_square(dtype, "int64", side, read, store)
    changed = func.with_body(replace_stages(func.body, {stage.name: nest}, []))
    library = compile_library(changed, HOST)
    values = np.arange(side * side).reshape(side, side).astype(dtype)
    out = guarded_tensor(np.zeros_like(values))
    library["main"](guarded_tensor(values), out)
    np.testing.assert_array_equal(out.numpy(), values.T)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_a_matrix(lanes):
    rows, columns = 2 * lanes, 3 * lanes
    source, target = scratch("source", [rows, columns]), scratch("target", [columns, rows])
    body = transpose_matrix(
        rows, columns, lanes, lambda i, j: (source, [i, j]), lambda i, j: (target, [j, i])
    )
    func = tirx.PrimFunc([source, target], block("root", body)).with_attr("global_symbol", "main")
    given = np.arange(rows * columns, dtype="float32").reshape(rows, columns)
    result = to_tensor(np.zeros((columns, rows), "float32"))
    compile_library(func, HOST)["main"](to_tensor(given), result)
    assert (result.numpy() == given.T).all()
