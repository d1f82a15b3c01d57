import tvm
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1, 1, 2, 3), "float32")):
    y = R.image.resize2d(x, (1, 1), coordinate_transformation_mode="align_corners")
    return y


def shows() -> bool:
    try:
        tvm.compile(tvm.IRModule({"main": main}), "llvm")
    except Exception as error:
        return "zero" in str(error)
    return False


DEFECT = Defect(
    title="[Topi] Resizing to one element with align_corners is refused: Divide by zero",
    kind="refusal",
    happens="The scale is (n - 1) / (1 - 1), folded at compile time.",
    expected="The first element.",
    worked_around_in=("graphgrad.ops.resize",),
)
