import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(c: R.Tensor((), "bool"), x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    if c:
        a = R.exp(x)
        y = R.sin(a)
    else:
        b = R.cos(x)
        y = R.sin(b)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    c, x = np.array(False), np.ones(4, "float32")
    vm["main"](tvm.runtime.tensor(c), tvm.runtime.tensor(x))
    return False


DEFECT = Defect(
    title=(
        "[StaticPlanBlockMemory] Storage allocated in one branch is used in the other, where "
        "it does not exist"
    ),
    kind="crash",
    happens=(
        "The else branch takes its tensors from storage that the then branch allocates. The "
        "condition is false, and the process ends with SIGSEGV."
    ),
    expected="sin(cos(x)): storage is shared by what dominates its users.",
    crashes=True,
    worked_around_in=("graphgrad.lower.pipeline",),
    report="https://github.com/apache/tvm/issues/20191",
)
