import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
    y = R.add(x, x)
    return y


def shows() -> bool:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), target), tvm.cpu())
    memory = np.zeros(96, "float32")
    start = 1 + (-memory.ctypes.data // 4) % 16  # four bytes behind a multiple of 64
    vm["main"](memory[start : start + 64])
    return False


DEFECT = Defect(
    title="[Runtime] A tensor that is not aligned to 64 bytes ends the process",
    kind="crash",
    happens=(
        "Kernels are compiled for aligned memory, and check type, shape and strides of "
        "arguments, but not alignment. An array of numpy that starts 4 bytes behind a "
        "multiple of 64 ends the process with SIGSEGV, where the target has wide vectors."
    ),
    expected="An exception, as `tvm.runtime.from_dlpack` raises it; np.empty gives such arrays.",
    crashes=True,
    worked_around_in=(
        "graphgrad.memory.argument_checks",
        "graphgrad.memory.result_checks",
        "graphgrad.ir.arrays",
    ),
)
