import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1,), "int64")):
    y = R.power(x, x)
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "power only applies to float" in str(error)
    return False


DEFECT = Defect(
    title="[Topi] power of integers is refused",
    kind="refusal",
    happens="`power only applies to float`.",
    expected="Powers, as Relax types the op.",
    worked_around_in=("graphgrad.ops.elementwise",),
)
