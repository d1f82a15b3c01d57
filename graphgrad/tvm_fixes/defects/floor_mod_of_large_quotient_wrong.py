import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1,), "float64")):
    y = R.floor_mod(x, R.const(0.3, "float64"))
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.array([1e16]))).numpy()
    return float(y[0]) != np.mod(1e16, 0.3)


DEFECT = Defect(
    title="[Topi] floor_mod of a large quotient is wrong",
    kind="wrong result",
    happens=(
        "a - floor(a / b) * b is computed as it stands: the quotient of 1e16 by 0.3 is rounded."
    ),
    expected="np.mod, which is exact.",
    worked_around_in=("graphgrad.ops.elementwise",),
)
