import numpy as np
import onnx.parser
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 8, opset_import: ["": 11]>
f (float[1, 2, 4] boxes, float[1, 1, 2] scores) => (int64[n, 3] y)
<int64[1] most = {2}>
{
    y = NonMaxSuppression(boxes, scores, most)
}"""


def shows() -> bool:
    vm = relax.VirtualMachine(
        tvm.compile(from_onnx(onnx.parser.parse_model(MODEL)), "llvm"), tvm.cpu()
    )
    boxes = np.array([[[0, 0, 2, 2], [1, 1, 3, 3]]], "float32")  # they overlap by 1/7
    scores = np.array([[[0.9, 0.8]]], "float32")
    return len(vm["main"](*map(tvm.runtime.tensor, (boxes, scores))).numpy()) == 2


DEFECT = Defect(
    title="[ONNX] NonMaxSuppression has other limits than the standard where they are left out",
    kind="wrong result",
    happens=(
        "Overlaps up to 0.5 are allowed, and scores from 0 down are not: also where a limit is "
        "given but no constant. Two boxes are chosen."
    ),
    expected="One: by default boxes must not overlap. A limit that is no constant is refused.",
    worked_around_in=("graphgrad.frontend.converters.suppression",),
)
