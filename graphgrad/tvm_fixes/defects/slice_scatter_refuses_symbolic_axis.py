import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor(("n", 2), "float32"), u: R.Tensor((1, 2), "float32")):
    y = R.slice_scatter(x, u, 0, 1, 1, axis=0)
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "constant int" in str(error)
    return False


DEFECT = Defect(
    title="[Topi] slice_scatter refuses a symbolic axis",
    kind="refusal",
    happens="`Expect value to be constant int`.",
    expected="A symbolic kernel.",
    worked_around_in=("graphgrad.ops.shape",),
)
