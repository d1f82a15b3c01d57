import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((2, "n"), "float32"), a: R.Tensor(("n",), "float32")):
    y = R.nn.prelu(x, a)
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "constant int" in str(error)
    return False


DEFECT = Defect(
    title="[Topi] prelu refuses a symbolic number of channels",
    kind="refusal",
    happens="`Expect value to be constant int`.",
    expected="A symbolic kernel.",
    worked_around_in=("graphgrad.ops.activation",),
)
