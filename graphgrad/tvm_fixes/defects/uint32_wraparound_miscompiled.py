import numpy as np
import tvm
from tvm import te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((2,), "uint32", name="x")
    a, c = tirx.const(747796405, "uint32"), tirx.const(2891336453, "uint32")
    y = te.compute((2,), lambda i: (x[i] * a + c) * a + c, name="y")
    values = np.array([1, 2], "uint32")
    result = tvm.runtime.tensor(np.zeros(2, "uint32"))
    kernel = tvm.compile(te.create_prim_func([x, y]), "llvm")
    kernel(tvm.runtime.tensor(values), result)
    a, c = np.uint32(747796405), np.uint32(2891336453)
    return result.numpy().tolist() != ((values * a + c) * a + c).tolist()


DEFECT = Defect(
    title="[LLVM] Sums and products of uint32 are declared not to wrap around",
    kind="wrong result",
    happens=(
        "Arithmetic of uint32 is emitted with `nuw`, so that LLVM may assume what it likes where "
        "it wraps: two steps of a linear congruential generator are the constant 2891336452 for "
        "every x."
    ),
    expected="Numbers modulo 2³², as in C, CUDA and numpy.",
    worked_around_in=("graphgrad.ops.random",),
    report="https://github.com/apache/tvm/issues/12383",
)
