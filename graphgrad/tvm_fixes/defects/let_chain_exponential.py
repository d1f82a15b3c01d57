import time
from itertools import pairwise

import tvm
from tvm import te, tirx
from tvm.ir import prim

from ..ledger import Defect


def seconds(depth: int) -> float:
    x = te.placeholder((4,), "float64", name="x")

    def chained(i):
        values = [tirx.Var(f"v{n}", "float64") for n in range(depth + 1)]
        result = values[-1]
        for before, after in reversed(list(pairwise(values))):
            result = prim.Let(after, before * before + 0.5, result)
        return prim.Let(values[0], x[i], result)

    kernel = te.create_prim_func([x, te.compute((4,), chained)])
    start = time.process_time()
    tvm.compile(kernel, "llvm")
    return time.process_time() - start


def shows() -> bool:
    seconds(2)
    return seconds(17) > 4 * seconds(13)  # four more bindings: 16 times as long


DEFECT = Defect(
    title="[Simplify] A chain of n bindings, each used twice, takes time of order 2ⁿ",
    kind="cost",
    happens=(
        "The simplifiers of LowerIntrin and of the code generator put in for a variable what it "
        "stands for, and so on for the variables in that. Four bindings more take 16 times as "
        "long."
    ),
    expected=(
        "Time in proportion to the bindings; a variable that is used more than once stays bound."
    ),
    worked_around_in=(
        "graphgrad.fallback.lowering.explicit_bindings",
        "graphgrad.lower.cpu.register_transpose",
        "graphgrad.ops.random",
    ),
)
