import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((4,), "float32")):
    y = R.nn.pad(x, (9, 15), pad_mode="reflect")
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.arange(4, dtype="float32"))).numpy()
    return y.tolist() != np.pad(np.arange(4), (9, 15), "reflect").tolist()


DEFECT = Defect(
    title='[Topi] nn.pad in the mode "reflect" reflects once',
    kind="wrong result",
    happens=(
        "Where the border is wider than the tensor, what a single reflection does not reach "
        "is read from elsewhere."
    ),
    expected="Reflections of reflections, as in numpy.",
    worked_around_in=("graphgrad.ops.padding",),
)
