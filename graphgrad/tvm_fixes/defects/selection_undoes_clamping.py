import tvm
from tvm import te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((4,), "float32", name="x")
    zero = tirx.const(0.0, "float32")

    def body(i):
        return tirx.Select(i >= 4, x[tirx.max(i - 4, 0)], zero)

    kernel = te.create_prim_func([x, te.compute((8,), body, name="y")])
    simplified = tvm.tirx.transform.StmtSimplify()(tvm.IRModule({"main": kernel}))
    return "max" not in simplified.script()  # i - 4 is read for each i from 0 on


DEFECT = Defect(
    title=(
        "[Simplify] The condition of a Select simplifies the index of a read that is "
        "evaluated in any case"
    ),
    kind="wrong result",
    happens=(
        "Under the condition `i >= 4` of a `Select`, the index `max(i - 4, 0)` becomes `i - "
        "4`. But a `Select` evaluates both values, so that the element at -4 is read: the "
        "clamping was there to prevent that."
    ),
    expected=(
        "The values of a `Select` are not simplified under its condition, unlike those of "
        "`if_then_else`."
    ),
    worked_around_in=("graphgrad.lower.cpu.winograd.transforms",),
)
