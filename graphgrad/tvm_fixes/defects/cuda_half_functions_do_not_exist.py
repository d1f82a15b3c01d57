import tvm
from tvm import s_tir, te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((8,), "float16", name="x")
    kernel = te.create_prim_func([x, te.compute((8,), lambda i: tirx.tan(x[i]), name="y")])
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    with target:
        mod = s_tir.dlight.gpu.Fallback().apply(kernel, target, False).mod
    executable = tvm.compile(mod["main"].with_attr("tirx.is_scheduled", True), target)
    (device,) = executable.mod.imports
    return "htan(" in device.inspect_source("cuda")


DEFECT = Defect(
    title="[CUDA] Functions of float16 are called by names that CUDA does not have",
    kind="refusal",
    happens=(
        "`htan`, `hsinh`, `hcosh`, `hatan`, `herf`, `hpow`, `hfmod`, `hnearbyint`; acos, asin, "
        "log1p and hypot are refused. Some of those that exist are approximate."
    ),
    expected="They are computed in float32.",
    worked_around_in=("graphgrad.lower.cuda.intrinsics",),
)
