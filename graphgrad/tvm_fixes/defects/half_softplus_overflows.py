import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1,), "float16")):
    y = R.nn.softplus(x)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.array([20], "float16"))).numpy()
    return np.isinf(y[0])


DEFECT = Defect(
    title="[Topi] softplus of float16 is infinite from 12 on",
    kind="wrong result",
    happens="log(1 + exp(x)) is computed as it stands; exp overflows.",
    expected="20 for 20.",
    worked_around_in=("graphgrad.ops.activation",),
)
