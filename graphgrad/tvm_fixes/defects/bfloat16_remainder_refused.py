import tvm
from tvm import te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((1,), "bfloat16", name="x")
    y = te.compute((1,), lambda i: tirx.Mod(x[i], tirx.const(1.25, "bfloat16")), name="y")
    try:
        tvm.compile(te.create_prim_func([x, y]), "llvm")
    except Exception as error:
        return "dtype mismatch on BufferStore" in str(error)
    return False


DEFECT = Defect(
    title="[BF16ComputeLegalize] The remainder of two bfloat16 is not legalized",
    kind="refusal",
    happens=(
        "`tirx.Mod` of bfloat16 fails at the store: `buffer's dtype is uint16, but RHS's "
        "dtype is bfloat16`."
    ),
    expected="It is computed in float32, as sums are.",
    worked_around_in=("graphgrad.fallback.lowering.wide_floats",),
)
