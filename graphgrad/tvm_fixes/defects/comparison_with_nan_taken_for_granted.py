import numpy as np
import tvm
from tvm import te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((2,), "float32", name="x")
    y = te.compute((1,), lambda i: tirx.Or(x[0] > x[1], x[1] >= x[0]), name="y")
    result = tvm.runtime.tensor(np.array([False]))
    kernel = tvm.compile(te.create_prim_func([x, y]), "llvm")
    kernel(tvm.runtime.tensor(np.array([np.nan, 1], "float32")), result)
    return bool(result.numpy()[0])  # NaN is neither greater than 1 nor at most 1


DEFECT = Defect(
    title="[Simplify] a > b or b >= a is taken for granted, although one may be NaN",
    kind="wrong result",
    happens="The disjunction is folded to true for floats.",
    expected="False where one is NaN.",
    worked_around_in=("graphgrad.lower.cpu.rowwise.accumulation",),
)
