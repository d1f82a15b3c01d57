import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((6,), "float32")):
    y = R.argmax(x, axis=0)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.array([1, np.nan, 3, np.nan, 2, 4], "float32"))).numpy()
    return int(y) != 1


DEFECT = Defect(
    title="[Topi] argmax and argmin of NaN give the position of any element",
    kind="wrong result",
    happens="Of 1 NaN 3 NaN 2 4 it is not 1: comparisons with NaN are false whichever way.",
    expected="1, that of the first NaN, as in numpy and PyTorch.",
    worked_around_in=("graphgrad.ops.reduce",),
    report="https://github.com/apache/tvm/issues/19540",
)
