import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1,), "float32")) -> R.Tensor((), "float32"):
    with R.dataflow():
        root = R.sqrt(x)
        zero = R.zeros_like(x)
        positive = R.greater(x, zero)
        y = R.where(positive, root, x)
        loss = R.sum(y)
        R.output(loss)
    return loss


def shows() -> bool:
    mod = relax.transform.Gradient("main")(tvm.IRModule({"main": main}))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    _, (gradient,) = vm["main_adjoint"](tvm.runtime.tensor(np.zeros(1, "float32")))
    return np.isnan(gradient.numpy()[0])


DEFECT = Defect(
    title="[Relax] The gradient of where(x > 0, sqrt(x), x) is NaN at 0",
    kind="wrong result",
    happens=(
        "The cotangent 0 that the mask gives to sqrt is multiplied by its derivative, which "
        "is infinite there."
    ),
    expected="1, the derivative of the side that was chosen.",
    worked_around_in=("graphgrad.autodiff.apply",),
)
