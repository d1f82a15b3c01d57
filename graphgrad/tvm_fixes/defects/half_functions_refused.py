import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1,), "float16")):
    y = R.acos(x)
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "unknown intrinsic" in str(error)
    return False


DEFECT = Defect(
    title="[LLVM] acos, atan, sinh and others of float16 are refused: unknown intrinsic",
    kind="refusal",
    happens="They exist for float32 and float64 alone.",
    expected="They are computed in float32.",
    worked_around_in=("graphgrad.lower.cpu.functions", "graphgrad.ops.elementwise"),
)
