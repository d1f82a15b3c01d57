import numpy as np
import tvm
from tvm import te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((1,), "float32", name="x")
    y = te.compute((1,), lambda i: tirx.Not(x[i] < 1.0), name="y")
    result = tvm.runtime.tensor(np.array([False]))
    kernel = tvm.compile(te.create_prim_func([x, y]), "llvm")
    kernel(tvm.runtime.tensor(np.array([np.nan], "float32")), result)
    return not result.numpy()[0]  # NaN is not less than 1


DEFECT = Defect(
    title="[Simplify] not (a < b) becomes b <= a, which is false for NaN",
    kind="wrong result",
    happens="`tirx.Not(x < 1)` of a float NaN is false.",
    expected="True; comparisons of floats are not inverted.",
    worked_around_in=(
        "graphgrad.fallback.scatter",
        "graphgrad.ops.elementwise",
    ),
)
