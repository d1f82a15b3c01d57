import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(
    x: R.Tensor((65536,), "float32"), i: R.Tensor((1, 1), "int64"), u: R.Tensor((1,), "float32")
):
    y = R.scatter_nd(x, i, u)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    x, i, u = np.zeros(65536, "float32"), np.array([[-1]]), np.ones(1, "float32")
    y = vm["main"](*map(tvm.runtime.tensor, (x, i, u))).numpy()
    return y[-1] != 1


DEFECT = Defect(
    title="[Topi] scatter_nd writes before the tensor for negative indices",
    kind="wrong result",
    happens=(
        "The update is written before the beginning of the result; of small tensors that "
        "corrupts the heap and ends the process."
    ),
    expected="The last element, as in ONNX; or nothing.",
    crashes=True,
    worked_around_in=("graphgrad.ops.index",),
    report="https://github.com/apache/tvm/issues/20297",
)
