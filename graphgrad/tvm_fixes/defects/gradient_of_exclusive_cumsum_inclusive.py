import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((3,), "float32")) -> R.Tensor((), "float32"):
    with R.dataflow():
        y = R.cumsum(x, axis=0, exclusive=True)
        loss = R.sum(y)
        R.output(loss)
    return loss


def shows() -> bool:
    mod = relax.transform.Gradient("main")(tvm.IRModule({"main": main}))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    _, (gradient,) = vm["main_adjoint"](tvm.runtime.tensor(np.ones(3, "float32")))
    return gradient.numpy().tolist() != [2, 1, 0]


DEFECT = Defect(
    title="[Relax] The gradient of an exclusive cumsum is that of the inclusive one",
    kind="wrong result",
    happens="The rule does not read `exclusive`: the gradient of the sum is 3 2 1.",
    expected="2 1 0.",
    worked_around_in=("graphgrad.registry.cumulative",),
)
