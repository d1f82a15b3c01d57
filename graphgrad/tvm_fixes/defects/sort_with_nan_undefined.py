import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((64,), "float32")):
    y = R.sort(x)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    x = np.arange(64, dtype="float32")[::-1].copy()
    x[::3] = np.nan
    y = vm["main"](tvm.runtime.tensor(x)).numpy()
    numbers = y[~np.isnan(y)].tolist()
    return numbers != sorted(numbers)


DEFECT = Defect(
    title="[Contrib] Numbers are not sorted where NaN is among them",
    kind="wrong result",
    happens=(
        "The comparison that sort.cc hands to the library's sort is no order where NaN is among "
        "the numbers, so that even these come out of order."
    ),
    expected="Sorted numbers, and NaN behind them.",
    worked_around_in=("graphgrad.ops.sorting",),
)
