import tvm
from tvm import te

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((8,), "float32", name="x")
    kernel = te.create_prim_func([x, te.compute((8,), lambda i: x[i] + 1.0, name="y")])
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    return not tvm.compile(kernel, target).mod.imports  # no module of CUDA, and no error


DEFECT = Defect(
    title=("[CUDA] A kernel whose loops are not bound to threads becomes host code without a word"),
    kind="wrong result",
    happens="The executable holds no CUDA at all; the host would read device memory.",
    expected="An error, as VerifyMemory raised it.",
    worked_around_in=("graphgrad.lower.cuda.lowering",),
)
