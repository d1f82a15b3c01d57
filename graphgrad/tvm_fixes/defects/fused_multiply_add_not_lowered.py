import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1,), "float32")):
    y = R.ewise_fma(x, x, x)
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "cannot emit this Relax operator" in str(error)
    return False


DEFECT = Defect(
    title="[Relax] ewise_fma has no legalization",
    kind="refusal",
    happens="`CodeGenVM cannot emit this Relax operator directly`.",
    expected="a · b + c.",
    worked_around_in=("graphgrad.ops.elementwise",),
)
