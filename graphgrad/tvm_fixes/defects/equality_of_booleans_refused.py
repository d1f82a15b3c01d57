import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((5,), "bool"), y: R.Tensor((5,), "bool")):
    z = R.equal(x, y)
    return z


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "Invalid operand types for FCmp" in str(error)
    return False


DEFECT = Defect(
    title="[LLVM] Booleans are compared as floats, which LLVM refuses",
    kind="refusal",
    happens="`Invalid operand types for FCmp instruction`, and so for not_equal.",
    expected="A comparison of integers of one bit.",
    worked_around_in=("graphgrad.ops.elementwise",),
)
