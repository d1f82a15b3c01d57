import time

import tvm
from tvm import tirx

from ..ledger import Defect


def seconds(depth: int) -> float:
    value = tirx.Var("i", "int32")
    for n in range(depth):
        value = (value + n) % (100 - n)
    start = time.process_time()
    tvm.sym.Analyzer().simplify(value)
    return time.process_time() - start


def shows() -> bool:
    seconds(2)
    return seconds(16) > 8 * seconds(12)  # four more remainders


DEFECT = Defect(
    title=("[Simplify] Analyzer.simplify takes time exponential in the depth of nested remainders"),
    kind="cost",
    happens=(
        "Each further remainder of a remainder doubles the time and more; an index of 20 of "
        "them is not simplified in any reasonable time."
    ),
    expected="Time in proportion to the depth, or no attempt.",
    worked_around_in=("graphgrad.fallback.cut",),
)
