"""What is bound is compiled, whatever TVM's simplifier makes of it under conditions."""

import numpy as np
import pytest
from tvm import te, tirx
from tvm.ir import prim

from graphgrad.fallback.lowering.prim_func import create_prim_func
from tests.fallback import running


@pytest.mark.parametrize("index_dtype", [None, "int64"])
def test_conditions_on_what_turns_out_to_be_constant(index_dtype):
    def body(i):
        remainder = tirx.Var("remainder", "int32")
        value = tirx.if_then_else(tirx.EQ(remainder, 0), x(i) * 2.0, x(i) * 3.0)
        return prim.Let(remainder, prim.FloorMod(tirx.const(4), tirx.const(2)), value)

    x = te.placeholder((4,), "float64", name="x")
    y = te.compute((4,), body, name="y")
    given = np.arange(4.0)
    func = create_prim_func([x, y], index_dtype_override=index_dtype)
    (result,) = running.run(func, given, np.full(4, np.nan))[1:]
    np.testing.assert_array_equal(result, 2 * given)
