import numpy as np
import tvm
from tvm import relax

from ..ledger import Defect


def shows() -> bool:
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit(relax.op.exp(x))
            b = builder.emit(relax.op.reshape(a, (2, 2)))
            pair = builder.emit_output(relax.Tuple([a, b]))
        builder.emit_func_output(pair)
    vm = relax.VirtualMachine(tvm.compile(builder.get(), "llvm"), tvm.cpu())
    a, b = vm["main"](tvm.runtime.tensor(np.zeros(4, "float32")))
    return a.data_ptr() == b.data_ptr()


DEFECT = Defect(
    title="[RewriteDataflowReshape] A tensor and its reshape, both returned, share memory",
    kind="wrong result",
    happens=(
        "The reshape becomes a view also where it leaves the function, in a tuple with its "
        "source: writing to one result changes the other."
    ),
    expected="Results of a pure function do not share memory.",
    worked_around_in=("graphgrad.memory.ownership",),
)
