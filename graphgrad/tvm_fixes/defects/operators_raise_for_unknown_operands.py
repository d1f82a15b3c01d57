from tvm import relax

from ..ledger import Defect


class Mine:
    def __radd__(self, left):
        return "mine"


def shows() -> bool:
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    try:
        x + Mine()
    except TypeError:
        return True
    return False


DEFECT = Defect(
    title=("[Relax] Operators of expressions raise TypeError where Python asks for NotImplemented"),
    kind="refusal",
    happens=(
        "`x + mine` raises for an operand that is no expression, before Python can ask "
        "`mine.__radd__`."
    ),
    expected="NotImplemented.",
    worked_around_in=("graphgrad.ir.tensor",),
)
