import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1, 1, 2, 2, 2), "float32")):
    y = R.image.resize3d(
        x,
        (2, 2, 2),
        roi=(0.0, 0.0, 0.0, 1.0, 1.0, 2.0),
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=5.0,
    )
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.ones((1, 1, 2, 2, 2), "float32"))).numpy()
    return (y == 1).all()  # the region reaches outside, where 5 is to be


DEFECT = Defect(
    title=(
        "[Topi] resize3d by tf_crop_and_resize ignores that the region leaves the image along depth"
    ),
    kind="wrong result",
    happens="The extrapolation value is not used there.",
    expected="5 in the half that lies outside.",
    worked_around_in=("graphgrad.ops.resize",),
)
