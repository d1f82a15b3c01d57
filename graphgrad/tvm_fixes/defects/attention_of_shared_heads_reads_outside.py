import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(
    q: R.Tensor((1, 2, 4, 2), "float32"),
    k: R.Tensor((1, 2, 2, 2), "float32"),
    v: R.Tensor((1, 2, 2, 2), "float32"),
):
    y = R.nn.attention(q, k, v)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    q, k, v = np.zeros((1, 2, 4, 2)), np.zeros((1, 2, 2, 2)), np.ones((1, 2, 2, 2))
    v[:, :, 1] = 2
    y = vm["main"](*(tvm.runtime.tensor(a.astype("float32")) for a in (q, k, v))).numpy()
    return y[0, 0, :, 0].tolist() != [1, 1, 2, 2]


DEFECT = Defect(
    title="[Topi] attention reads behind keys and values where query heads share them",
    kind="wrong result",
    happens=(
        "Four query heads on two of keys and values are accepted and typed; heads 3 and 4 "
        "read behind the end."
    ),
    expected="Heads 1 and 2 share the first, 3 and 4 the second.",
    crashes=True,
    worked_around_in=("graphgrad.ops.attention",),
)
