import tvm
from tvm import s_tir, te, tirx

from ..ledger import Defect


def shows() -> bool:
    y = te.compute((16,), lambda i: tirx.const(1.5, "bfloat16"), name="y")
    schedule = s_tir.Schedule(te.create_prim_func([y]))
    (loop,) = schedule.get_loops("y")
    schedule.vectorize(loop)
    try:
        tvm.compile(schedule.mod["main"], "llvm")
    except Exception as error:
        return "dtype mismatch on BufferStore" in str(error)
    return False


DEFECT = Defect(
    title="[BF16ComputeLegalize] A vectorized store of a bfloat16 constant is refused",
    kind="refusal",
    happens=(
        "`buffer's dtype is uint16, the lanes of indexing are 16, but RHS's dtype is "
        "bfloat16x16`: the broadcast constant is not legalized."
    ),
    expected="A vector of the constant's bits.",
    worked_around_in=("graphgrad.lower.cpu.map",),
)
