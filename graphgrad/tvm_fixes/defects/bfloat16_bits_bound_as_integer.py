import ml_dtypes
import numpy as np
import tvm
from tvm import te, tirx
from tvm.ir import prim

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((2,), "bfloat16", name="x")

    def body(i):
        v = tirx.Var("v", "float32")
        return prim.Let(v, x[i].astype("float32"), v * v)

    y = te.compute((2,), body, name="y")
    kernel = tvm.compile(te.create_prim_func([x, y]), "llvm")
    result = tvm.runtime.tensor(np.zeros(2, "float32"))
    kernel(tvm.runtime.tensor(np.array([1, 3], ml_dtypes.bfloat16)), result)
    return result.numpy().tolist() != [1, 9]


DEFECT = Defect(
    title=(
        "[BF16ComputeLegalize] What a variable is bound to is not legalized: bits of bfloat16 "
        "are taken for an integer"
    ),
    kind="wrong result",
    happens=(
        "`let v = float32(x[i]) in v * v` of a bfloat16 x computes with the bits of x as a "
        "number: (16256)² for 1."
    ),
    expected="1 and 9.",
    worked_around_in=(
        "graphgrad.fallback.lowering.wide_floats",
        "graphgrad.lower.cpu.vector_math",
    ),
)
