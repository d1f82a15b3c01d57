import tvm
import tvm_ffi
from tvm import relax, tirx

from ..ledger import Defect


def shows() -> bool:
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n,), "float32"))
    call = relax.op.strided_slice(x, [0], [n - 1], [-1], [-2], assume_inbound=True)
    (extent,) = relax.BlockBuilder().normalize(call).ty.shape
    five = tvm_ffi.structural_map(extent, (tvm.ir.Var, lambda _: tirx.IntImm("int64", 5)))
    return int(tvm.sym.Analyzer().simplify(five)) != 3  # elements 4, 2 and 0


DEFECT = Defect(
    title="[Relax] strided_slice backwards along a symbolic axis has the wrong extent",
    kind="wrong result",
    happens=("n elements by steps of -2, with assume_inbound, are typed such that five give four."),
    expected="Three.",
    worked_around_in=("graphgrad.ops.movement",),
)
