import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((), "float32")):
    y = R.repeat(x, 3)
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "Index out of range" in str(error)
    return False


DEFECT = Defect(
    title="[Topi] repeat of a scalar is refused",
    kind="refusal",
    happens="`Index out of range`, after its type was found. A count of zero fails, too.",
    expected="Three elements.",
    worked_around_in=("graphgrad.ops.shape",),
)
