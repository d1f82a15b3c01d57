import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((5,), "uint8")):
    y = R.sign(x)
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "cannot make uint from negative value" in str(error)
    return False


DEFECT = Defect(
    title="[TOPI] sign of unsigned integers does not compile",
    kind="refusal",
    happens="`cannot make uint from negative value -1`: the −1 of negative elements is made.",
    expected="0 and 1.",
    worked_around_in=("graphgrad.ops.elementwise",),
)
