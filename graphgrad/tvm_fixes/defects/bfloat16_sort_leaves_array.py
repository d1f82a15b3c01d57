import ml_dtypes
import numpy as np
import tvm
from tvm import te, topi

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((8,), "bfloat16", name="x")
    kernel = tvm.compile(te.create_prim_func([x, topi.sort(x)]), "llvm")
    values = np.array([3, -5, -1, 2, -7, 5, 4, 1], ml_dtypes.bfloat16)
    result = tvm.runtime.tensor(np.zeros(8, ml_dtypes.bfloat16))
    kernel(tvm.runtime.tensor(values), result)
    return result.numpy().tolist() != np.sort(values).tolist()


DEFECT = Defect(
    title=(
        "[Contrib] Arrays of bfloat16 are described as float32 to packed functions: sorting "
        "reads and writes behind their end"
    ),
    kind="wrong result",
    happens=(
        "`topi.sort` of eight bfloat16 sorts four pairs of them as if they were float32, and "
        "more that lie behind; the results are wrong and other memory is overwritten."
    ),
    expected="They are sorted, or refused as int8 is.",
    crashes=True,
    worked_around_in=("graphgrad.fallback.lowering.wide_arrays",),
)
