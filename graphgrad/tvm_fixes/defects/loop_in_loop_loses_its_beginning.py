import numpy as np
import tvm
from tvm.script import tirx as T

from ..ledger import Defect


@T.prim_func(s_tir=True)
def main(x: T.Buffer((5, 5), "float32")):
    with T.sblock("root"):
        for j in range(1, 5):
            for i in range(j, 5):
                x[i, j] = T.float32(1)


def shows() -> bool:
    result = tvm.runtime.tensor(np.zeros((5, 5), "float32"))
    tvm.compile(main, "llvm")(result)
    expected = np.tril(np.ones((5, 5), "float32"))
    expected[:, 0] = 0
    return result.numpy().tolist() != expected.tolist()


DEFECT = Defect(
    title="[Passes] CanonicalizeLoop: a loop in another one keeps bounds of the old variable",
    kind="wrong result",
    happens=(
        "Both loops are made to begin at 0, and the variable of the outer one becomes j + 1 where "
        "it is read, but not in the range of the inner one: i begins one row above the diagonal."
    ),
    expected="The lower triangle without its first column: i begins at the old value of j.",
    worked_around_in=("graphgrad.lower.kernels.zero_based_loops",),
)
