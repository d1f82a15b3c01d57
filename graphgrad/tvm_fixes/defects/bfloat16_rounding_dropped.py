import numpy as np
import tvm
from tvm import te

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((1,), "float32", name="x")
    y = te.compute((1,), lambda i: x[i].astype("bfloat16").astype("float32"), name="y")
    result = tvm.runtime.tensor(np.zeros(1, "float32"))
    kernel = tvm.compile(te.create_prim_func([x, y]), "llvm")
    kernel(tvm.runtime.tensor(np.array([1.001], "float32")), result)
    return result.numpy()[0] != 1  # the bfloat16 nearest to 1.001


DEFECT = Defect(
    title="[BF16ComputeLegalize] A cast to bfloat16 and back does not round",
    kind="wrong result",
    happens=(
        '`x.astype("bfloat16").astype("float32")` of 1.001 is 1.001. Nor is anything rounded that '
        "is compared: what a kernel computes is never equal to the same value that another one "
        "has stored."
    ),
    expected="1, the nearest bfloat16.",
    worked_around_in=(
        "graphgrad.fallback.lowering.wide_floats",
        "graphgrad.lower.kernels.wide_bfloat16",
    ),
)
