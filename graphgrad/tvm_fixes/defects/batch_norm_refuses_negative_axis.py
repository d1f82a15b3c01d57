import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((4, 3), "float32"), g: R.Tensor((3,), "float32")):
    y = R.nn.batch_norm(x, g, g, g, g, axis=-1)
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "list.remove(x): x not in list" in str(error)
    return False


DEFECT = Defect(
    title="[Topi] batch_norm on a negative axis is refused",
    kind="refusal",
    happens="`list.remove(x): x not in list`; Relax types the call.",
    expected="The last axis.",
    worked_around_in=("graphgrad.ops.norm",),
)
