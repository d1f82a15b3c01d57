"""Squares transposed in registers."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from graphgrad.fallback import create_prim_func
from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.cpu.contraction import replace_stages
from graphgrad.lower.cpu.contraction.register_transpose import turned
from tests.guarded_memory import guarded_tensor
from tests.lower.kernel_programs import HOST, tensor


@pytest.mark.parametrize("side", [4, 8, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_a_square_turned(side, dtype):
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

    nest = turned(dtype, "int64", side, read, store)
    changed = func.with_body(replace_stages(func.body, {stage.name: nest}, []))
    library = tvm.compile(changed.with_attr("global_symbol", "main"), target=HOST)
    values = np.arange(side * side).reshape(side, side).astype(dtype)
    out = guarded_tensor(np.zeros_like(values))
    library["main"](guarded_tensor(values), out)
    np.testing.assert_array_equal(out.numpy(), values.T)
