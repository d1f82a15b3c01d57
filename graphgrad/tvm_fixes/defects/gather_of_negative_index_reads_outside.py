import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((4,), "float32"), i: R.Tensor((1,), "int64")):
    y = R.gather_elements(x, i, axis=0)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    x, i = np.array([1, 2, 3, 4], "float32"), np.array([-1])
    y = vm["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(i)).numpy()
    return y[0] != 4


DEFECT = Defect(
    title="[Topi] gather_elements and gather_nd read before the tensor for negative indices",
    kind="wrong result",
    happens="The index is used as it is.",
    expected="The last element, as in ONNX and numpy; or a documented limit.",
    crashes=True,
    worked_around_in=("graphgrad.ops.index",),
    report="https://github.com/apache/tvm/issues/20297",
)
