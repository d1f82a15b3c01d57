import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1, 2), "float64"), g: R.Tensor((2,), "float64")):
    y = R.nn.rms_norm(x, g, axes=[-1])
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    x = np.array([[0.1, 0.3]])
    y = vm["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(np.ones(2))).numpy()
    error = np.abs(y - x / np.sqrt((x**2).mean() + 1e-5)).max()
    return error > 1e-9


DEFECT = Defect(
    title="[Topi] rms_norm computes float64 in float32",
    kind="wrong result",
    happens="The result has an error above 1e-9.",
    expected="float64.",
    worked_around_in=("graphgrad.ops.norm",),
)
