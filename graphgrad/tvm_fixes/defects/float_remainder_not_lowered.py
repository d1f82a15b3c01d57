import tvm
from tvm import te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((2,), "float32", name="x")
    y = te.compute((2,), lambda i: tirx.fmod(x[i], tirx.const(2.0, "float32")))
    try:
        tvm.compile(te.create_prim_func([x, y]), "llvm")
    except Exception as error:
        return "fmod" in str(error)
    return False


DEFECT = Defect(
    title="[LLVM] tirx.fmod has no lowering for processors",
    kind="refusal",
    happens="`unknown intrinsic tirx.fmod`, for float32 and float64 alike.",
    expected=(
        "A call of `fmodf` or `fmod`, or the instruction `frem`, which `tirx.Mod` of floats "
        "becomes."
    ),
    worked_around_in=("graphgrad.lower.cpu.functions", "graphgrad.ops.elementwise"),
)
