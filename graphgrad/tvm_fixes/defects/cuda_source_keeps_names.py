import tvm
from tvm import s_tir, te

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((8,), "float32", name="/0/x")  # as exporters to ONNX name values
    kernel = te.create_prim_func([x, te.compute((8,), lambda i: x[i] + 1.0, name="y")])
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    with target:
        mod = s_tir.dlight.gpu.Fallback().apply(kernel, target, False).mod
    scheduled = mod["main"].with_attr("tirx.is_scheduled", True)
    executable = tvm.compile(scheduled, target)
    (device,) = executable.mod.imports
    return "__restrict__ /0/x" in device.inspect_source("cuda")


DEFECT = Defect(
    title="[CUDA] Names of buffers are written into the source as they are",
    kind="refusal",
    happens=(
        "`/0/x`, as exporters to ONNX name values, becomes the name of a parameter. Dots are "
        "replaced, but after names were made unique."
    ),
    expected="An identifier of C.",
    worked_around_in=("graphgrad.lower.cuda.names",),
)
