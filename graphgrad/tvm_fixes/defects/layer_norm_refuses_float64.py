import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(
    x: R.Tensor((1, 2), "float64"), g: R.Tensor((2,), "float64"), b: R.Tensor((2,), "float64")
):
    y = R.nn.layer_norm(x, g, b, axes=[-1])
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "only support float32 and float16" in str(error)
    return False


DEFECT = Defect(
    title="[Topi] layer_norm, instance_norm and group_norm refuse float64",
    kind="refusal",
    happens="`only support float32 and float16`.",
    expected="float64: gradients are checked in it.",
    worked_around_in=("graphgrad.ops.norm",),
)
