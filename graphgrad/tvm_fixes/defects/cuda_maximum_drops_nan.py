import tvm
from tvm import s_tir, te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((8,), "float32", name="x")
    y = te.compute((8,), lambda i: tirx.max(x[i], 0.0), name="y")
    kernel = te.create_prim_func([x, y])
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    with target:
        mod = s_tir.dlight.gpu.Fallback().apply(kernel, target, False).mod
    executable = tvm.compile(mod["main"].with_attr("tirx.is_scheduled", True), target)
    (device,) = executable.mod.imports
    return "max(" in device.inspect_source("cuda")


DEFECT = Defect(
    title="[CUDA] max and min of floats are CUDA's, which drop NaN",
    kind="wrong result",
    happens="`max(a, b)` of float32 in the source.",
    expected="A form that keeps NaN, as on no target yet (see maximum_drops_nan).",
    worked_around_in=("graphgrad.lower.cuda.intrinsics",),
    report="https://github.com/apache/tvm/issues/19518",
)
