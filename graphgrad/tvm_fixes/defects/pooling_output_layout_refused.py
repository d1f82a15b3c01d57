import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1, 2, 4, 4), "float32")):
    y = R.nn.max_pool2d(x, pool_size=[2, 2], out_layout="NHWC")
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "max_pool2d" in str(error)
    return False


DEFECT = Defect(
    title=(
        "[Relax] Pooling with an out_layout of its own is left to the code generator, which "
        "refuses it"
    ),
    kind="refusal",
    happens="`CodeGenVM cannot emit this Relax operator directly`.",
    expected="A layout_transform behind the pooling.",
    worked_around_in=("graphgrad.ops.pool",),
)
