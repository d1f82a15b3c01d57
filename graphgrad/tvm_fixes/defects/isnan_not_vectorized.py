import tvm
from tvm import s_tir, te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((16,), "float32", name="x")
    zero = tirx.const(0.0, "float32")
    y = te.compute((16,), lambda i: tirx.Select(tirx.isnan(x[i]), zero, x[i]), name="y")
    schedule = s_tir.Schedule(te.create_prim_func([x, y]))
    (loop,) = schedule.get_loops("y")
    schedule.vectorize(loop)
    source = tvm.compile(schedule.mod["main"], "llvm").mod.inspect_source("ll")
    return "i.s" in source  # of one element, and not of a vector of them


DEFECT = Defect(
    title="[VectorizeLoop] A vectorized loop with isnan is run lane by lane",
    kind="cost",
    happens="The whole statement that holds `tirx.isnan` becomes a serial loop over the lanes.",
    expected="A comparison of vectors (`fcmp uno`).",
    worked_around_in=("graphgrad.lower.cpu.nan",),
)
