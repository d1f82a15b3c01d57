import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((0, 2), "float32")):
    y = R.mean(x, axis=0)
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "Divide by zero" in str(error)
    return False


DEFECT = Defect(
    title="[Topi] mean over an empty axis is refused: Divide by zero",
    kind="refusal",
    happens="The count is folded as an integer at compile time.",
    expected="NaN, or whatever the runtime makes of 0 / 0.",
    worked_around_in=("graphgrad.ops.reduce",),
)
