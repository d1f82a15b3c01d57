import numpy as np
import onnx.parser
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 8, opset_import: ["": 16]>
f (float[1, 1, 1, 8] x) => (float[1, 1, 1, 1] y)
<float[1, 4] rois = {4, 0, 8, 1}, int64[1] batch = {0}>
{
    y = RoiAlign<output_height = 1, output_width = 1, sampling_ratio = 1, spatial_scale = 0.5>(
        x, rois, batch)
}"""


def shows() -> bool:
    mod = from_onnx(onnx.parser.parse_model(MODEL))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    x = np.arange(8, dtype="float32").reshape(1, 1, 1, 8)
    y = vm["main"](tvm.runtime.tensor(x))
    # From 4 · 0.5 - 0.5 to 8 · 0.5 - 0.5: its middle is 2.5.
    return not np.allclose(y.numpy(), 2.5)


DEFECT = Defect(
    title="[ONNX] RoiAlign with half_pixel subtracts 0.5 before it scales",
    kind="wrong result",
    happens=(
        "`(corner - 0.5) * spatial_scale`: 2.75. Wrong wherever spatial_scale is not 1, as in "
        "every detector that torchvision exports."
    ),
    expected="`corner * spatial_scale - 0.5`: from 1.5 to 3.5, with its middle at 2.5.",
    worked_around_in=("graphgrad.frontend.converters.roi_align",),
    report="https://github.com/apache/tvm/issues/19501",
)
