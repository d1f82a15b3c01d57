import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((2,), "float32")):
    y = R.full_like(x, R.const(float("inf"), "float32"))
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except TypeError as error:
        return "is not iterable" in str(error)
    return False


DEFECT = Defect(
    title="[TOPI] a tensor full of infinities or NaN does not compile",
    kind="refusal",
    happens="`argument of type 'PrimType' is not iterable`, where the name of a dtype is expected.",
    expected="The tensor.",
    worked_around_in=("graphgrad.ops.elementwise",),
)
