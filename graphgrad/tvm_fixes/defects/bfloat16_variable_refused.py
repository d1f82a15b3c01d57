import tvm
from tvm import te, tirx
from tvm.ir import prim

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((2,), "bfloat16", name="x")

    def body(i):
        v = tirx.Var("v", "bfloat16")
        return prim.Let(v, x[i] + x[i], v * v)

    try:
        tvm.compile(te.create_prim_func([x, te.compute((2,), body)]), "llvm")
    except Exception as error:
        return "value.ty() == var->ty" in str(error)
    return False


DEFECT = Defect(
    title="[BF16ComputeLegalize] A variable of bfloat16 keeps its dtype while its value changes",
    kind="refusal",
    happens=(
        "A `Let` of bfloat16 fails: the value is float32 after legalization, its variable is "
        "bfloat16 (`value.ty() == var->ty`)."
    ),
    expected="The variable becomes float32 too.",
    worked_around_in=("graphgrad.fallback.lowering.wide_floats",),
)
