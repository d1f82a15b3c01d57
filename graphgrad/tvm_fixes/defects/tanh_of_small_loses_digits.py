import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1,), "float32")):
    y = R.tanh(x)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.array([1e-5], "float32"))).numpy()
    return abs(float(y[0]) / 1e-5 - 1) > 1e-5


DEFECT = Defect(
    title="[LLVM] tanh of small arguments loses digits",
    kind="wrong result",
    happens=(
        "The rational approximation has a relative error above 1e-5 at 1e-5 in float32, and in "
        "float64 one of more than 10,000 units."
    ),
    expected="tanh x = x there, to the last digit.",
    worked_around_in=("graphgrad.lower.cpu.small_tanh",),
)
