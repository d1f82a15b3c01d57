import numpy as np
import tvm
from tvm import te

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((5,), "float32", name="x")
    k = te.reduce_axis((0, 5), "k")
    y = te.compute((1,), lambda i: te.sum(x[k], axis=k, where=k < 3), name="y")
    result = tvm.runtime.tensor(np.zeros(1, "float32"))
    kernel = tvm.compile(te.create_prim_func([x, y]), "llvm")
    kernel(tvm.runtime.tensor(np.ones(5, "float32")), result)
    return result.numpy()[0] == 5  # 1 + 1 + 1 is 3


DEFECT = Defect(
    title="[TE] create_prim_func drops the condition `where=` of a reduction",
    kind="wrong result",
    happens=(
        "The block that `te.create_prim_func` writes adds up all terms: the sum of five ones "
        "`where=k < 3` is 5."
    ),
    expected="3: `where` is documented as the filtering predicate of the reduction.",
    worked_around_in=("graphgrad.fallback.lowering.explicit_reductions",),
)
