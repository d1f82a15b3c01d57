import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1,), "float32")):
    y = R.not_equal(x, x)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.array([np.nan], "float32"))).numpy()
    return not y[0]


DEFECT = Defect(
    title="[LLVM] not_equal of NaN and itself is false",
    kind="wrong result",
    happens="`!=` of floats is emitted as an ordered comparison.",
    expected="True (`fcmp une`).",
    worked_around_in=("graphgrad.ops.elementwise",),
)
