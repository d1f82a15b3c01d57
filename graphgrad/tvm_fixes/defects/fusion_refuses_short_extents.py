from tvm import relax, te

from ..ledger import Defect


def shows() -> bool:
    a = te.placeholder((3,), "float32", name="a")  # extents of int32, as te makes them
    twice = te.create_prim_func([a, te.compute((3,), lambda i: a[i] * 2.0, name="b")])
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.exp(x))
            kernel = builder.add_func(twice.without_attr("global_symbol"), "twice")
            y = builder.emit(relax.call_tir(kernel, (y,), x.ty))
            y = builder.emit_output(relax.op.negative(y))
        builder.emit_func_output(y)
    try:
        relax.get_pipeline("zero")(builder.get())
    except Exception as error:
        return "Inconsistent buffers" in str(error)
    return False


DEFECT = Defect(
    title=(
        "[FuseTIR] Kernels with extents of int32, the default of te.create_prim_func, are "
        "refused beside ops"
    ),
    kind="refusal",
    happens=(
        "`Inconsistent buffers compute and a mapped to the same relax var`: a tensor that an "
        "op writes with extents of int64 and the kernel reads with extents of int32 is taken "
        "for two."
    ),
    expected="Extents are compared as numbers.",
    worked_around_in=("graphgrad.lower.graph.long_indices",),
)
