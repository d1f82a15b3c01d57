import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1, 4, 2, 2), "float32")):
    y = R.nn.pixel_shuffle(x, 2)
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return isinstance(error, AttributeError)
    return False


DEFECT = Defect(
    title=("[Relax] The legalization of nn.pixel_shuffle calls a function that topi does not have"),
    kind="refusal",
    happens="AttributeError: topi.nn has no pixel_shuffle.",
    expected="A kernel.",
    worked_around_in=("graphgrad.ops.shape",),
)
