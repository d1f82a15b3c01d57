import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1, 2, 4, 4), "float32"), w: R.Tensor((3, 2, 3, 3), "float32")):
    y = R.nn.conv2d(x, w, out_layout="NHWC")
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "cannot emit this Relax operator" in str(error)
    return False


DEFECT = Defect(
    title=(
        "[Relax] A convolution with an out_layout of its own is left to the code generator, "
        "which refuses it"
    ),
    kind="refusal",
    happens="`CodeGenVM cannot emit this Relax operator directly`.",
    expected="A layout_transform behind the convolution.",
    worked_around_in=("graphgrad.ops.conv.ops",),
)
