import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((3, 5), "float32")):
    y = R.median(x, axis=[0, 1])
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    x = np.arange(15, dtype="float32").reshape(3, 5)
    y = vm["main"](tvm.runtime.tensor(x))
    return not np.array_equal(y[0].numpy(), 7)


DEFECT = Defect(
    title="[Topi] median over several axes has another shape than its type",
    kind="wrong result",
    happens=(
        "The median over both axes of a 3 × 5 matrix is typed as a scalar and computed with "
        "five elements: more are written than the type has room for."
    ),
    expected="A scalar, 7.",
    worked_around_in=("graphgrad.ops.reduce",),
)
