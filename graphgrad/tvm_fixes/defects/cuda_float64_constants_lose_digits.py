import tvm
from tvm import s_tir, te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((8,), "float64", name="x")
    y = te.compute((8,), lambda i: x[i] * tirx.const(1e-20, "float64"), name="y")
    kernel = te.create_prim_func([x, y])
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    with target:
        mod = s_tir.dlight.gpu.Fallback().apply(kernel, target, False).mod
    executable = tvm.compile(mod["main"].with_attr("tirx.is_scheduled", True), target)
    (device,) = executable.mod.imports
    return "* 0.000000000000000" in device.inspect_source("cuda")


DEFECT = Defect(
    title="[CUDA] Constants of float64 are written with 15 decimals: 1e-20 becomes 0",
    kind="wrong result",
    happens="`* 0.000000000000000` in the source.",
    expected="17 significant digits, or hexadecimal as for float32.",
    worked_around_in=("graphgrad.lower.cuda.intrinsics",),
)
