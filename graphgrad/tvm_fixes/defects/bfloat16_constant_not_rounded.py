import ml_dtypes
import numpy as np
import tvm
from tvm import te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((1,), "bfloat16", name="x")
    tenth = tirx.const(0.1, "bfloat16")
    y = te.compute((1,), lambda i: tirx.EQ(x[i], tenth), name="y")
    result = tvm.runtime.tensor(np.array([False]))
    kernel = tvm.compile(te.create_prim_func([x, y]), "llvm")
    kernel(tvm.runtime.tensor(np.array([0.1], ml_dtypes.bfloat16)), result)
    return not result.numpy()[0]


DEFECT = Defect(
    title="[BF16ComputeLegalize] Constants of bfloat16 keep digits that bfloat16 does not have",
    kind="wrong result",
    happens=(
        "`x == bfloat16(0.1)` is false for the bfloat16 nearest to 0.1: the constant becomes "
        "the float32 0.1."
    ),
    expected="True.",
    worked_around_in=("graphgrad.fallback.lowering.wide_floats",),
)
