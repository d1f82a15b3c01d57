import numpy as np
import tvm
from tvm import te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((3,), "float32", name="x")
    k = te.reduce_axis((0, 3), "k")
    init = tirx.const(10.0, "float32")
    y = te.compute((1,), lambda i: te.sum(x[k], axis=k, init=init), name="y")
    result = tvm.runtime.tensor(np.zeros(1, "float32"))
    kernel = tvm.compile(te.create_prim_func([x, y]), "llvm")
    kernel(tvm.runtime.tensor(np.ones(3, "float32")), result)
    return result.numpy()[0] == 3  # 10 + 1 + 1 + 1 is 13


DEFECT = Defect(
    title="[TE] create_prim_func ignores the initial value `init=` of a reduction",
    kind="wrong result",
    happens=(
        "The reduction starts at the identity of its combiner: the sum of three ones from "
        "`init=10` is 3."
    ),
    expected="The reduction starts at `init`: 13. Or the argument is refused.",
    worked_around_in=("graphgrad.fallback.lowering.explicit_reductions",),
)
