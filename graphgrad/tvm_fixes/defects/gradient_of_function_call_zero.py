import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from ..ledger import Defect


@I.ir_module
class Module:
    @R.function(private=True)
    def square(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        with R.dataflow():
            y = R.multiply(x, x)
            R.output(y)
        return y

    @R.function
    def main(x: R.Tensor((3,), "float32")) -> R.Tensor((), "float32"):
        cls = Module
        with R.dataflow():
            y = cls.square(x)
            loss = R.sum(y)
            R.output(loss)
        return loss


def shows() -> bool:
    mod = relax.transform.Gradient("main")(Module)
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    _, (gradient,) = vm["main_adjoint"](tvm.runtime.tensor(np.ones(3, "float32")))
    return gradient.numpy().tolist() == [0, 0, 0]  # the derivative of x * x at 1 is 2


DEFECT = Defect(
    title="[Relax] Gradient through a call of another Relax function is silently zero",
    kind="wrong result",
    happens=(
        "`relax.transform.Gradient` skips calls of global functions; the adjoint of `x` is "
        "`R.zeros`."
    ),
    expected="2 x, or an error that tells to inline the function first.",
    worked_around_in=("graphgrad.ir.inline",),
)
