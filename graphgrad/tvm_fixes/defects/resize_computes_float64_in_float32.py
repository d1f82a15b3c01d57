import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1, 1, 1, 2), "float64")):
    y = R.image.resize2d(x, (1, 4), method="nearest_neighbor")
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.array([[[[1, 1 + 1e-12]]]]))).numpy()
    return y[0, 0, 0, 3] != 1 + 1e-12


DEFECT = Defect(
    title="[Topi] Resizing float64 computes in float32",
    kind="wrong result",
    happens="1 + 1e-12 becomes 1, also by nearest neighbors.",
    expected="float64.",
    worked_around_in=("graphgrad.ops.resize",),
)
