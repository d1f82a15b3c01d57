import numpy as np
import tvm

from ..ledger import Defect


def shows() -> bool:
    x = tvm.runtime.tensor(np.ones(2, "float32"))
    copy = tvm.get_global_func("vm.builtin.copy")
    return copy(x).data_ptr() == x.data_ptr()


DEFECT = Defect(
    title="[VM] vm.builtin.copy does not copy, and Relax has no op that does",
    kind="missing API",
    happens="The result has the data pointer of the argument.",
    expected="Memory of its own; or another name, and an op `relax.copy`.",
    worked_around_in=("graphgrad.ops.copy",),
)
