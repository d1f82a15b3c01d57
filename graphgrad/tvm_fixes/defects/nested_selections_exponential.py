import time

import tvm
from tvm import tirx

from ..ledger import Defect


def seconds(depth: int) -> float:
    zero, one = tirx.const(0.0, "float64"), tirx.const(1.0, "float64")
    value = tirx.Var("x", "float64")
    for _ in range(depth):
        value = tirx.Select(value < 0.0, zero, one)
    start = time.process_time()
    tvm.sym.Analyzer().simplify(value)
    return time.process_time() - start


def shows() -> bool:
    seconds(2)
    return seconds(7) > 8 * seconds(4)  # three more selections


DEFECT = Defect(
    title="[Simplify] Selections in conditions of selections take time exponential in the depth",
    kind="cost",
    happens=(
        "`Analyzer.simplify` takes 6 times as long for each further selection whose condition "
        "holds the one before it: 0.5 s for 7 of them, 36 nodes in all, and 12 s for 9. It "
        "simplifies a condition anew for each of its analyses and for both values. Compilation "
        "simplifies a kernel some ten times; clamped and selected indices, as of a grid sample, "
        "nest so."
    ),
    expected="Time in proportion to the nodes; a condition is simplified once.",
    worked_around_in=("graphgrad.lower.kernels.inline_maps",),
)
