import tvm
from tvm import te

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((2,), "float32", name="x")

    def nested(i):
        value = x[i]
        for _ in range(2_000):
            value = value * 0.5 + 1.0
        return value

    tvm.compile(te.create_prim_func([x, te.compute((2,), nested)]), "llvm")
    return False


DEFECT = Defect(
    title="[Passes] An expression of some thousand levels overflows the stack",
    kind="crash",
    happens=(
        "A polynomial of 2,000 steps in one `te.compute` is built, and ends the process with "
        "SIGSEGV when it is compiled: TVM's visitors recurse over its levels."
    ),
    expected="A kernel, or an exception that names the limit.",
    crashes=True,
    worked_around_in=(
        "graphgrad.fallback.cut",
        "graphgrad.fallback.walk",
    ),
)
