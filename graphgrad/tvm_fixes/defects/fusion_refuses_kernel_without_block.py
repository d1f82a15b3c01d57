import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from ..ledger import Defect


@I.ir_module(s_tir=True)
class Module:
    @T.prim_func(private=True, s_tir=True)
    def twice(x: T.Buffer((3,), "float32"), y: T.Buffer((3,), "float32")):
        for i in range(3):
            y[i] = x[i] * T.float32(2)

    @R.function
    def main(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        cls = Module
        with R.dataflow():
            a = R.exp(x)
            b = R.call_tir(cls.twice, (a,), out_ty=R.Tensor((3,), "float32"))
            c = R.negative(b)
            R.output(c)
        return c


def shows() -> bool:
    try:
        tvm.compile(Module, "llvm")
    except Exception as error:
        return "SBlockRealizeNode" in str(error)
    return False


DEFECT = Defect(
    title="[AnnotateTIROpPattern] A call_tir of a kernel of bare loops fails an internal check",
    kind="refusal",
    happens=(
        "`Check failed: func->body->IsInstance<s_tir::SBlockRealizeNode>()` for a kernel that "
        "has no block, although it can be compiled by itself."
    ),
    expected="The kernel is taken to be opaque.",
    worked_around_in=("graphgrad.lower.graph.static_kernels",),
)
