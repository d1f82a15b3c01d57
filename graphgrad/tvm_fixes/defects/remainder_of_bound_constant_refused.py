import tvm
from tvm import te, tirx
from tvm.ir import prim

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((4,), "float64", name="x")

    def body(i):
        r = tirx.Var("r", "int32")
        value = tirx.if_then_else(tirx.EQ(r, 0), x[i] * 2.0, x[i] * 3.0)
        return prim.Let(r, prim.FloorMod(tirx.const(4), tirx.const(2)), value)

    y = te.compute((4,), body, name="y")
    try:
        tvm.compile(te.create_prim_func([x, y]), "llvm")
    except Exception as error:
        return "Trying to update var" in str(error)
    return False


DEFECT = Defect(
    title=(
        "[Simplify] `Trying to update var with a different const bound` for a binding whose "
        "value becomes constant"
    ),
    kind="refusal",
    happens=(
        "The analyzer remembers what it learned of a variable under a condition, and fails "
        "when a later round finds the variable bound to something simpler."
    ),
    expected="The kernel; bounds are intersected.",
    worked_around_in=("graphgrad.fallback.lowering.hidden_bindings",),
)
