import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((2, 2), "float32")):
    y = R.tril(x, 1 << 40)
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "1099511627776" in str(error)
    return False


DEFECT = Defect(
    title="[Topi] tril and triu refuse diagonals that int32 cannot number",
    kind="refusal",
    happens="`Literal value 1099511627776 exceeds range of int32`, of an attribute of int64.",
    expected="The whole matrix.",
    worked_around_in=("graphgrad.ops.shape",),
)
