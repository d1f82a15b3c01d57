import tvm
from tvm import s_tir, te, tirx

from ..ledger import Defect


def shows() -> bool:
    infinity = tirx.const(float("inf"), "bfloat16")
    kernel = te.create_prim_func([te.compute((8,), lambda i: infinity, name="y")])
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    with target:
        mod = s_tir.dlight.gpu.Fallback().apply(kernel, target, False).mod
    executable = tvm.compile(mod["main"].with_attr("tirx.is_scheduled", True), target)
    (device,) = executable.mod.imports
    return "(inf" in device.inspect_source("cuda")


DEFECT = Defect(
    title="[CUDA] Infinity of bfloat16 is written as `inff`",
    kind="refusal",
    happens="`__float2bfloat16_rn(inff/*inf*/)`, a word that no header defines.",
    expected="`CUDART_INF_F`.",
    worked_around_in=("graphgrad.lower.cuda.intrinsics",),
)
