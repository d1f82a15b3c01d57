import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1, 4, 4, 2), "float32"), w: R.Tensor((2, 3, 3, 3), "float32")):
    y = R.nn.conv2d_transpose(x, w, data_layout="NHWC", kernel_layout="IOHW")
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "cannot emit this Relax operator" in str(error)
    return False


DEFECT = Defect(
    title=(
        "[Relax] Transposed convolutions have one layout; of another, the code generator says "
        "that it cannot emit the op"
    ),
    kind="refusal",
    happens="`CodeGenVM cannot emit this Relax operator directly` for NHWC.",
    expected="A kernel, or a message about the layout.",
    worked_around_in=("graphgrad.ops.conv.ops",),
)
