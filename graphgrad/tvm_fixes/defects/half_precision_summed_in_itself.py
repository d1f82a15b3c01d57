import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((5000,), "float16")):
    y = R.sum(x)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.ones(5000, "float16"))).numpy()
    return float(y) == 2048  # to which 1 can be added in float16 as often as one likes


DEFECT = Defect(
    title="[Topi] Sums of float16 are accumulated in float16: 5,000 ones are 2,048",
    kind="wrong result",
    happens=(
        "The running sum does not grow any more where one unit of it is larger than what is "
        "added. matmul, convolutions, mean, average pooling, batch norm, softmax and cumsum "
        "do the same; bfloat16 is worse."
    ),
    expected="5,000: sums of half precision are accumulated in float32 and rounded once.",
    worked_around_in=(
        "graphgrad.fallback.lowering.wide_reductions",
        "graphgrad.ops.reduce",
        "graphgrad.ops.linalg",
        "graphgrad.ops.conv.stages",
        "graphgrad.ops.norm",
        "graphgrad.ops.pool",
        "graphgrad.ops.cumulative",
    ),
)
