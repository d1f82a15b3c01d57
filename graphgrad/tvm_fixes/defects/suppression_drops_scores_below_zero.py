import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(boxes: R.Tensor((1, 2, 4), "float32"), scores: R.Tensor((1, 1, 2), "float32")):
    with R.dataflow():
        chosen = R.vision.all_class_non_max_suppression(
            boxes,
            scores,
            R.const(2, "int64"),
            R.const(0.5, "float32"),
            R.const(-9.0, "float32"),
            output_format="onnx",
        )
        y = chosen[0]
        R.output(y)
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    boxes = np.array([[[0, 0, 1, 1], [5, 5, 6, 6]]], "float32")
    scores = np.array([[[-1.0, -2.0]]], "float32")
    return len(vm["main"](*map(tvm.runtime.tensor, (boxes, scores))).numpy()) == 0


DEFECT = Defect(
    title="[TOPI] all_class_non_max_suppression drops boxes whose score is −1 or less",
    kind="wrong result",
    happens=(
        "A score of −1 marks a box that is out, so that of two boxes far apart none is chosen; "
        "nor is any where the limit of overlaps is 0. A box is dropped at the limit, not beyond it."
    ),
    expected="Both boxes: their scores are above the limit of −9.",
    worked_around_in=("graphgrad.frontend.converters.suppression",),
)
