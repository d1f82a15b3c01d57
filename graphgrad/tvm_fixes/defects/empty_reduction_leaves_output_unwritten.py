import numpy as np
import tvm
from tvm import te

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((2, 0), "float32", name="x")
    k = te.reduce_axis((0, 0), "k")
    y = te.compute((2,), lambda i: te.sum(x[i, k], axis=k), name="y")
    result = tvm.runtime.tensor(np.full(2, 77, "float32"))
    kernel = tvm.compile(te.create_prim_func([x, y]), "llvm")
    kernel(tvm.runtime.tensor(np.zeros((2, 0), "float32")), result)
    return result.numpy().tolist() == [77, 77]  # a sum of no terms is 0


DEFECT = Defect(
    title="[TE] A reduction over an empty axis leaves its output unwritten",
    kind="wrong result",
    happens=(
        "The initial value is written by the first iteration of the reduced loops. Where "
        "these have none, be their extent static or symbolic, the output keeps what its "
        "memory held."
    ),
    expected="The output is the identity of the combiner; that of a sum is 0.",
    worked_around_in=(
        "graphgrad.fallback.lowering.explicit_reductions",
        "graphgrad.frontend.converters.roi_align",
        "graphgrad.ops.moments",
    ),
)
