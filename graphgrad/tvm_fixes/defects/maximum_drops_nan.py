import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1,), "float32")):
    y = R.nn.relu(x)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.array([np.nan], "float32"))).numpy()
    return not np.isnan(y[0])


DEFECT = Defect(
    title="[LLVM] max and min drop NaN: relu(NaN) is 0",
    kind="wrong result",
    happens=(
        "`tirx.max` becomes a comparison and a selection that prefer the second operand. So "
        "relu, maximum, minimum, clip, relu6, max and min reductions and max pooling turn NaN "
        "into a number, and a network that has diverged reports a finite loss."
    ),
    expected="NaN, as in numpy, PyTorch and ONNX.",
    worked_around_in=(
        "graphgrad.ops.activation",
        "graphgrad.ops.elementwise",
        "graphgrad.ops.reduce",
        "graphgrad.ops.pool",
    ),
    report="https://github.com/apache/tvm/issues/19579",
)
