import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1, 2, 3), "float32")):
    y = R.nn.adaptive_avg_pool1d(x)
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "IntImm" in str(error)
    return False


DEFECT = Defect(
    title="[Relax] Adaptive pooling without an output_size is refused",
    kind="refusal",
    happens=(
        "`Cannot convert from type ir.IntImm to Array`; the documentation says that the size "
        "is then that of the input."
    ),
    expected="The input.",
    worked_around_in=("graphgrad.ops.pool",),
)
