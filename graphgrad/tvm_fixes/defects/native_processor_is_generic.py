import tvm
from tvm import te

from ..ledger import Defect


def assembly(**options):
    x = te.placeholder((1024,), "float32", name="x")
    kernel = te.create_prim_func([x, te.compute((1024,), lambda i: x[i] * x[i] + 1.0)])
    target = tvm.target.Target({"kind": "llvm", **options})
    source = tvm.compile(kernel, target).mod.inspect_source("asm")
    return [line for line in source.splitlines() if "mul" in line]


def shows() -> bool:
    host = tvm.get_global_func("target.llvm_get_system_cpu")()
    return assembly() == assembly(mcpu="native") != assembly(mcpu=host)


DEFECT = Defect(
    title='[Target] mcpu="native" means a generic processor',
    kind="cost",
    happens=(
        "Code for `native` is that of a bare `llvm`, with no vectors but the architecture's "
        "oldest; the log says that native is not valid. Several times slower than the machine "
        "could do."
    ),
    expected="The host's processor, as in clang; or an exception.",
    worked_around_in=("graphgrad.lower.target",),
)
