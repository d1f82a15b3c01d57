from tvm import relax, te

from ..ledger import Defect


def shows() -> bool:
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            copy = builder.emit_te(lambda x: te.compute((4,), lambda i: x[i], name="copy"), x)
            y = builder.emit_output(relax.op.exp(copy))
        builder.emit_func_output(y)
    mod = relax.transform.RewriteDataflowReshape()(builder.get())
    return "R.reshape" in mod.script()  # in the place of the call of the kernel


DEFECT = Defect(
    title="[RewriteDataflowReshape] A kernel that copies becomes a view",
    kind="wrong result",
    happens=(
        "Any kernel that moves no element is taken for a reshape. So there is no way to write "
        "a copy."
    ),
    expected=(
        "A kernel that a user wrote as a copy allocates memory; reshapes are told by their op."
    ),
    worked_around_in=("graphgrad.memory.ownership",),
)
