from tvm import relax
from tvm.script import ir as I
from tvm.script import tirx as T

from ..ledger import Defect


@I.ir_module(s_tir=True)
class Module:
    @T.prim_func(s_tir=True)
    def running_sums(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("sums"):
                v = T.axis.opaque(8, i)
                y[v] = T.if_then_else(v > 0, y[v - 1], T.float32(0)) + x[v]


def shows() -> bool:
    mod = relax.transform.AnnotateTIROpPattern()(Module)
    return int(mod["running_sums"].attrs["op_pattern"]) <= 2  # elementwise to injective


DEFECT = Defect(
    title="[AnnotateTIROpPattern] A kernel that reads what it writes is taken for a map",
    kind="wrong result",
    happens=(
        "Running sums, each from the element before, get the pattern of an elementwise or "
        "injective map, although the kernel reads its output and its axis is opaque. Fusion "
        "then treats it as one."
    ),
    expected="kOpaque.",
    worked_around_in=(
        "graphgrad.ops.define",
        "graphgrad.fallback.kernels.expressions",
    ),
)
