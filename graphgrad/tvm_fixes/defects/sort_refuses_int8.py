import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((5,), "int8")):
    y = R.sort(x)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    try:
        vm["main"](tvm.runtime.tensor(np.zeros(5, "int8")))
    except Exception as error:
        return "Unsupported input dtype" in str(error)
    return False


DEFECT = Defect(
    title="[Contrib] sort, argsort and topk refuse integers of 8 and 16 bits",
    kind="refusal",
    happens="`Unsupported input dtype: int8`, when the compiled program runs.",
    expected="Sorted elements; or an error at compile time.",
    worked_around_in=("graphgrad.ops.sorting",),
)
