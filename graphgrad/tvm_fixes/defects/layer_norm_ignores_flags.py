import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(
    x: R.Tensor((1, 2), "float32"), g: R.Tensor((2,), "float32"), b: R.Tensor((2,), "float32")
):
    y = R.nn.layer_norm(x, g, b, axes=[-1], center=False)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    x, g, b = np.array([[0, 1]]), np.ones(2), np.full(2, 5)
    y = vm["main"](*(tvm.runtime.tensor(a.astype("float32")) for a in (x, g, b))).numpy()
    return y.mean() > 4  # without center, b is not added


DEFECT = Defect(
    title="[Relax] layer_norm does not read center and scale",
    kind="wrong result",
    happens="β is added although center is False.",
    expected="No β.",
    worked_around_in=("graphgrad.ops.norm",),
)
