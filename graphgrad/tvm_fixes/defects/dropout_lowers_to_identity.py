import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((64,), "float32")):
    y = R.nn.dropout(x, rate=0.5)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y, mask = vm["main"](tvm.runtime.tensor(np.ones(64, "float32")))
    return (y.numpy() == 1).all() and (mask.numpy() == 1).all()


DEFECT = Defect(
    title="[Relax] nn.dropout lowers to the identity, and Relax has no random numbers",
    kind="missing API",
    happens="All elements are kept, the mask is all ones. tvm.contrib.random has no seed.",
    expected="Dropout by a seed that is an argument; or an error.",
    worked_around_in=(
        "graphgrad.ops.random",
        "graphgrad.frontend.mode",
    ),
)
