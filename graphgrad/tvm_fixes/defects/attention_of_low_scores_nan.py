import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(q: R.Tensor((1, 2, 1, 1), "float32"), k: R.Tensor((1, 2, 1, 1), "float32")):
    y = R.nn.attention(q, k, k, causal_mask="TopLeft")
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    q, k = np.full((1, 2, 1, 1), -1e3, "float32"), np.ones((1, 2, 1, 1), "float32")
    return np.isnan(vm["main"](tvm.runtime.tensor(q), tvm.runtime.tensor(k)).numpy()).any()


DEFECT = Defect(
    title="[Topi] Causal attention is NaN where all scores are far below zero",
    kind="wrong result",
    happens=(
        "Masked scores are set to 0 before the maximum is taken, which is then 0: all "
        "exponentials vanish."
    ),
    expected="A mean of values: the maximum is over what may be attended.",
    worked_around_in=("graphgrad.ops.attention",),
)
