import tvm
from tvm import s_tir, te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((16,), "float32", name="x")
    schedule = s_tir.Schedule(
        te.create_prim_func([x, te.compute((16,), lambda i: tirx.cosh(x[i]))])
    )
    (loop,) = schedule.get_loops("compute")
    schedule.vectorize(loop)
    try:
        tvm.compile(schedule.mod["main"], "llvm")
    except Exception as error:
        return "unknown intrinsic" in str(error)
    return False


DEFECT = Defect(
    title="[VectorizeLoop] cosh and sinh in a vectorized loop are refused: unknown intrinsic",
    kind="refusal",
    happens="`FloatSuffix` finds no name of the C library for a vector type.",
    expected="The loop is run lane by lane, as with other functions of the C library.",
    worked_around_in=("graphgrad.lower.cpu.functions",),
)
