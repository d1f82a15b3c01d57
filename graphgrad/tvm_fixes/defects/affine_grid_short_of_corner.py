import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1, 2, 3), "float32")):
    y = R.image.affine_grid(x, (3, 2))
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.array([[[1, 0, 0], [0, 1, 0]]], "float32"))).numpy()
    return y.max() != 1


DEFECT = Defect(
    title="[Topi] affine_grid places its corners 5e-8 short of ±1",
    kind="wrong result",
    happens="The step 2 / (n - 1) is rounded, then multiplied.",
    expected="1 exactly: grid_sample with align_corners otherwise mixes in what lies outside.",
    worked_around_in=("graphgrad.ops.grid_sample",),
)
