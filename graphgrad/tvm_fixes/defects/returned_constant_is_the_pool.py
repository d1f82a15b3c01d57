import numpy as np
import tvm
from tvm import relax

from ..ledger import Defect


def shows() -> bool:
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        builder.emit_func_output(builder.emit(relax.const(np.ones(2, "float32"))))
    vm = relax.VirtualMachine(tvm.compile(builder.get(), "llvm"), tvm.cpu())
    vm["main"]().copyfrom(np.zeros(2, "float32"))
    return vm["main"]().numpy().tolist() != [1, 1]


DEFECT = Defect(
    title="[VM] A returned constant is the one in the executable's pool",
    kind="wrong result",
    happens="Who writes into the result changes what later calls return.",
    expected="Each call returns ones: the constant is copied, or its memory is read-only.",
    worked_around_in=("graphgrad.memory.ownership",),
)
