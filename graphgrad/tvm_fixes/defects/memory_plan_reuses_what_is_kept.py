import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function(pure=False)
def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
    a = R.exp(x)
    _ = R.call_packed("keep", a, ty_args=R.Tuple())
    b = R.negative(x)
    c = R.exp(b)
    d = R.add(c, c)
    return d


def shows() -> bool:
    kept = []
    tvm.register_global_func("keep", kept.append)
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    vm["main"](tvm.runtime.tensor(np.ones(2, "float32")))
    return not np.allclose(kept[0].numpy(), np.exp(1))


DEFECT = Defect(
    title="[StaticPlanBlockMemory] Memory that a packed function has kept is reused",
    kind="wrong result",
    happens=(
        "A tensor that call_packed hands to Python, which keeps it, is overwritten by a later "
        "op of the same call. The same goes for what a packed function returns if that is its "
        "argument."
    ),
    expected=(
        "What leaves the program is not planned, or a packed function can declare that it "
        "keeps nothing."
    ),
    worked_around_in=("graphgrad.memory.escape",),
)
