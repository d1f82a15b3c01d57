import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1,), "float32")):
    y = R.bucketize(x, R.const([1.0, 2.0], "float32"))
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.array([np.nan], "float32"))).numpy()
    return y[0] != 2


DEFECT = Defect(
    title="[Topi] bucketize puts NaN before all boundaries",
    kind="wrong result",
    happens="The bucket is 0.",
    expected="Behind all: 2, as in numpy and PyTorch.",
    worked_around_in=("graphgrad.ops.sorting",),
)
