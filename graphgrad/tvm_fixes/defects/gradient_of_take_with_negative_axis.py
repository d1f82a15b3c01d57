import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((2, 3), "float32"), i: R.Tensor((1,), "int64")) -> R.Tensor((), "float32"):
    with R.dataflow():
        y = R.take(x, i, axis=-1)
        loss = R.sum(y)
        R.output(loss)
    return loss


def shows() -> bool:
    mod = relax.transform.Gradient("main", main.params[0])(tvm.IRModule({"main": main}))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    x, i = np.ones((2, 3), "float32"), np.array([1])
    _, (gradient,) = vm["main_adjoint"](tvm.runtime.tensor(x), tvm.runtime.tensor(i))
    return gradient.numpy().tolist() != [[0, 1, 0], [0, 1, 0]]


DEFECT = Defect(
    title="[Relax] The gradient of take along a negative axis goes to wrong elements",
    kind="wrong result",
    happens=(
        "take_backward counts the axis wrongly: the gradient of the second column is in the "
        "third of one row and the first of the other."
    ),
    expected="0 1 0 in both rows.",
    worked_around_in=("graphgrad.registry.index",),
)
