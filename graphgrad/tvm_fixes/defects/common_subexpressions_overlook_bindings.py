import tvm
from tvm import tirx
from tvm.ir import prim

from ..ledger import Defect


def shows() -> bool:
    x, y = (tirx.decl_buffer((12,), "float32", name) for name in "xy")
    i, v = tirx.Var("i", "int32"), tirx.Var("v", "float32")
    number = (i * 7 + 3).astype("float32")
    bound = prim.Let(v, tirx.BufferLoad(x, [i]), v * v * number)
    values = [bound, number, number + tirx.const(1.0, "float32")]
    stores = [tirx.BufferStore(y, value, [i + 4 * n]) for n, value in enumerate(values)]
    loop = tirx.For(i, 0, 4, tirx.ForKind.SERIAL, tirx.SeqStmt(stores))
    kernel = tirx.PrimFunc([x, y], loop).with_attr("global_symbol", "main")
    try:
        tvm.compile(kernel, "llvm")
    except tvm.error.InternalError as error:
        return "before definition" in str(error)
    return False


DEFECT = Defect(
    title="[TIR] CommonSubexprElim binds an expression behind a use inside of a Let",
    kind="refusal",
    happens=(
        "What stands in the body of a `Let` is not counted, but is replaced: the variable is bound "
        "in front of the first statement that was counted, which may come later."
    ),
    expected="It is bound in front of all uses, or those inside of the `Let` stay.",
    worked_around_in=(
        "graphgrad.fallback.lowering.explicit_bindings",
        "graphgrad.lower.codegen.parallel",
    ),
)
