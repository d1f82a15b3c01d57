import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function(pure=False)
def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
    with R.dataflow():
        before = R.exp(x)
        after = R.call_inplace_packed(
            "zero", x, inplace_indices=0, ty_args=R.Tensor((2,), "float32")
        )
        y = R.add(before, after)
        R.output(y)
    return y


def shows() -> bool:
    def zero(x):
        x.copyfrom(np.zeros(2, "float32"))
        return x

    tvm.register_global_func("zero", zero)
    mod = relax.get_pipeline("zero")(tvm.IRModule({"main": main}))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.ones(2, "float32")))
    return not np.allclose(y.numpy(), np.exp(1))


DEFECT = Defect(
    title="[FuseOps] Reads of the old value move behind the call that overwrites it",
    kind="wrong result",
    happens=(
        "`exp(x)`, computed before x is overwritten, is fused into its reader behind that: it "
        "is exp(0) = 1."
    ),
    expected="exp(1); or a dataflow block with such a call is ill-formed.",
    worked_around_in=("graphgrad.memory.effect_order",),
)
