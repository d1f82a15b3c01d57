import ml_dtypes
import numpy as np
import tvm
from tvm import te

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((1,), "float8_e4m3fn", name="x")
    y = te.compute((1,), lambda i: x[i].astype("float32"), name="y")
    result = tvm.runtime.tensor(np.zeros(1, "float32"))
    kernel = tvm.compile(te.create_prim_func([x, y]), "llvm")
    kernel(tvm.runtime.tensor(np.zeros(1, ml_dtypes.float8_e4m3fn)), result)
    return result.numpy()[0] != 0


DEFECT = Defect(
    title="[LLVM] The float8_e4m3fn 0 becomes 2⁻⁷ in float32",
    kind="wrong result",
    happens="The cast of float8 to float32 gives 0.0078125 for 0.",
    expected="0, and for each of the 256 numbers what ml_dtypes gives.",
    worked_around_in=("graphgrad.fallback.lowering.wide_floats",),
)
