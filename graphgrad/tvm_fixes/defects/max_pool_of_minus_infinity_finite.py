import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1, 1, 2), "float32")):
    y = R.nn.max_pool1d(x, pool_size=[2], strides=[2], padding=[2, 2])
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.full((1, 1, 2), -np.inf, "float32"))).numpy()
    return bool(np.isfinite(y).any())


DEFECT = Defect(
    title="[Topi] max pooling of -inf gives the least finite number",
    kind="wrong result",
    happens=(
        "Maxima start at `min_value`, which is finite, and borders hold it. Reductions by "
        "te.max start there too."
    ),
    expected="-inf.",
    worked_around_in=(
        "graphgrad.ops.pool",
        "graphgrad.fallback.lowering.explicit_reductions",
    ),
)
