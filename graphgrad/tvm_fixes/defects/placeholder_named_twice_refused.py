import tvm
from tvm import te

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((2,), "float32", name="x")
    try:
        tvm.compile(te.create_prim_func([x, x]), "llvm")
    except Exception as error:
        return "occurred multiple times" in str(error)
    return False


DEFECT = Defect(
    title="[TE] create_prim_func makes an ill-formed function of a tensor that is named twice",
    kind="refusal",
    happens=(
        "A placeholder that is an input and an output becomes two parameters that are one "
        "variable. Nothing is said before the function is compiled, and then that an array "
        "was declared several times."
    ),
    expected=(
        "`te.create_prim_func` copies the placeholder to an output of its own, or refuses the list."
    ),
    worked_around_in=("graphgrad.fallback.lowering.prim_func",),
)
