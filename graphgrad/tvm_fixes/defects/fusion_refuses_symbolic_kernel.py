from tvm import relax, te

from ..ledger import Defect


def shows() -> bool:
    n = te.var("n", "int64")
    a = te.placeholder((n,), "float32", name="a")
    twice = te.create_prim_func([a, te.compute((n,), lambda i: a[i] * 2.0, name="b")])
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
    title="[FuseTIR] A symbolic kernel called on tensors of known shape is refused",
    kind="refusal",
    happens=(
        "`Inconsistent buffers compute and a mapped to the same relax var`: the extents of "
        "the reader are variables, those of the writer numbers."
    ),
    expected="The variables are bound to the numbers.",
    worked_around_in=("graphgrad.lower.graph.static_kernels",),
)
