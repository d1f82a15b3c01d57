import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1, 3, 1, 2), "float32")):
    y = R.nn.attention(x, x, x, causal_mask="BottomRight", window_size=2)
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "sliding-window" in str(error)
    return False


DEFECT = Defect(
    title="[Topi] attention refuses a window_size",
    kind="refusal",
    happens=(
        "`sliding-window` attention fails an assertion at legalization; the attribute is one "
        "of the op's."
    ),
    expected="Attention to the last keys.",
    worked_around_in=("graphgrad.ops.attention",),
)
