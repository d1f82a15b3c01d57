import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(ct: R.Tensor((1, 1, 2, 2), "float32"), x: R.Tensor((1, 1, 5, 5), "float32")) -> R.Tensor(
    (1, 1, 5, 5), "float32"
):
    y = R.grad.max_pool2d_backward(ct, x, pool_size=[2, 2], strides=[2, 2])
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    ct = tvm.runtime.tensor(np.ones((1, 1, 2, 2), "float32"))
    x = tvm.runtime.tensor(np.arange(25, dtype="float32").reshape(1, 1, 5, 5))
    return vm["main"](ct, x).numpy().sum() != 4


DEFECT = Defect(
    title="[Relax] The gradient of max_pool2d is garbage where windows do not cover the input",
    kind="wrong result",
    happens=(
        "Of a 5 × 5 image pooled by 2 with stride 2, the last row and column get what lies in "
        "memory: NaN, 1e16 or 0, different from run to run: topi's pool_grad reads behind the "
        "last window."
    ),
    expected="0 there; the gradient adds up to that of the four windows, 4.",
    crashes=True,
    worked_around_in=("graphgrad.ops.pool",),
)
