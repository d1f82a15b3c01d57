import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor(("n", 3), "float32")):
    y = R.strided_slice(x, axes=[-1], begin=[1], end=[3])
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "axis < src_tensor_dim (-1 vs. 2)" in str(error)
    return False


DEFECT = Defect(
    title="[Topi] strided_slice along a negative axis of a tensor of symbolic shape is refused",
    kind="refusal",
    happens="`axis < src_tensor_dim (-1 vs. 2)`; of known shape it is served.",
    expected="The columns from 1 on.",
    worked_around_in=("graphgrad.ops.shape",),
)
