import tvm
from tvm import tirx

from ..ledger import Defect


def shows() -> bool:
    i, narrow = tirx.Var("i", "int64"), tirx.Var("narrow", "int8")
    analyzer = tvm.sym.Analyzer()
    extent = tvm.ir.Range.from_min_extent(tirx.const(0, "int64"), tirx.const(1000, "int64"))
    analyzer.bind(i, extent)
    try:
        analyzer.bind(narrow, tirx.Cast("int8", i - 444))
    except ValueError:
        return True
    return False


DEFECT = Defect(
    title="[Arith] A variable that is bound to a narrowing cast of many numbers is refused",
    kind="refusal",
    happens=(
        "The set of integers of a cast is that of its operand with both ends cast, and an end that "
        "the narrow type does not hold is an error: 'Literal value -444 exceeds range of int8'. "
        "Passes that bind variables, which common subexpressions have, fail in valid programs."
    ),
    expected="All numbers of the narrow type, where an end is not among them.",
    worked_around_in=("graphgrad.lower.cuda.intrinsics",),
)
