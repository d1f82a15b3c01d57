import numpy as np
import tvm
from tvm import te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((8,), "float32", name="x")
    places = te.placeholder((8,), "int64", name="places")

    def is_positive(i):
        inner = tirx.if_then_else(x[places[i]] > 0.0, 1.0, 0.0)
        return tirx.if_then_else(places[i] < 8, inner, 0.0)

    y = te.compute((8,), is_positive, name="y")
    kernel = tvm.compile(te.create_prim_func([x, places, y]), "llvm")
    result = tvm.runtime.tensor(np.zeros(8, "float32"))
    far = tvm.runtime.tensor(np.full(8, 1 << 40))  # where no memory is
    kernel(tvm.runtime.tensor(np.ones(8, "float32")), far, result)
    return False


DEFECT = Defect(
    title=(
        "[Simplify] Nested if_then_else become one with `and`, both sides of which processors "
        "evaluate: reads outside of tensors"
    ),
    kind="crash",
    happens=(
        "`if_then_else(a, if_then_else(b, v, 0), 0)` becomes `if_then_else(a and b, v, 0)` (since "
        "https://github.com/apache/tvm/pull/12749). The code generator for processors evaluates "
        "both sides of `and`. Where `b` reads what only `a` allows to read, the kernel reads "
        "outside: here the process ends with SIGSEGV."
    ),
    expected=(
        "Zeros: the inner condition is evaluated where the outer one holds. `And` "
        "short-circuits, or conditions that read are not joined."
    ),
    crashes=True,
    worked_around_in=(
        "graphgrad.fallback.lowering.nested_guards",
        "graphgrad.lower.cpu.guarded_reads",
    ),
)
