import tvm
import tvm_ffi
from tvm import te, tirx

from ..ledger import Defect


def shows() -> bool:
    i = tirx.IterVar(tvm.ir.Range.from_min_extent(1, 5), te.var("i"), tirx.IterVar.DataPar)
    out = tirx.decl_buffer([8], "float32", "out")
    store = tirx.BufferStore(out, tirx.const(0.0, "float32"), [i.var])
    block = tvm.s_tir.SBlock([i], [], [], "fill", store)
    loop = tirx.Var("loop", "int32")
    realized = tvm.s_tir.SBlockRealize([loop], tirx.const(True, "bool"), block)
    body = tirx.For(loop, tirx.const(1), tirx.const(5), tirx.ForKind.SERIAL, realized)
    filled = te.extern([[8]], [], lambda _, outs: body, out_buffers=[out], name="filled")
    func = te.create_prim_func([filled], index_dtype_override="int64")
    extents = []

    def visit(axis: tirx.IterVar) -> None:
        extents.append(int(axis.dom.extent))

    tvm_ffi.structural_walk(func.body, (tirx.IterVar, visit))
    return 5 not in extents


DEFECT = Defect(
    title="[TE] `index_dtype_override` shortens the range of an axis by its beginning",
    kind="wrong result",
    happens="The range of the block's axis is 1 to 4, in a loop from 1 to 5: its extent is taken "
    "for its end. What simplifies by the range of the axis is wrong in the last step.",
    expected="The range of the loop.",
    worked_around_in=("graphgrad.fallback.lowering.axis_ranges",),
)
