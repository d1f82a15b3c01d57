import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1,), "float32"), i: R.Tensor((2,), "int64"), u: R.Tensor((2,), "float32")):
    y = R.scatter_elements(x, i, u, axis=0, reduction="mean")
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    x, i, u = np.array([1.0]), np.array([0, 0]), np.array([2.0, 6.0])
    x, u = x.astype("float32"), u.astype("float32")
    y = vm["main"](*map(tvm.runtime.tensor, (x, i, u))).numpy()
    return y[0] != 3


DEFECT = Defect(
    title='[Topi] scatter_elements with reduction="mean" halves at each update',
    kind="wrong result",
    happens="Updates 2 and 6 of an element 1 give ((1 + 2) / 2 + 6) / 2 = 3.75.",
    expected="3, the mean of all.",
    worked_around_in=("graphgrad.ops.index",),
)
