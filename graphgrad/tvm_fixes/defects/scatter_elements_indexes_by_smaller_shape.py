import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(
    x: R.Tensor((2, 2, 3), "float32"),
    i: R.Tensor((1, 2, 2), "int64"),
    u: R.Tensor((1, 2, 2), "float32"),
):
    y = R.scatter_elements(x, i, u, axis=0)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    x, i, u = (
        np.zeros((2, 2, 3), "float32"),
        np.zeros((1, 2, 2), "int64"),
        np.ones((1, 2, 2), "float32"),
    )
    y = vm["main"](*map(tvm.runtime.tensor, (x, i, u))).numpy()
    return y[0].tolist() != [[1, 1, 0], [1, 1, 0]]


DEFECT = Defect(
    title="[Topi] scatter_elements addresses data by the shape of the indices",
    kind="wrong result",
    happens=(
        "Where the indices are smaller than the data along another axis than the scattered "
        "one, updates go to wrong elements: 1 1 1 1 0 0."
    ),
    expected="1 1 0 1 1 0.",
    worked_around_in=("graphgrad.ops.index",),
)
