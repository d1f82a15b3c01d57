import onnx.parser
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 8, opset_import: ["": 13]>
f (float[2] x) => (float[4] y)
<int64[2] pads = {1, 1}>
{
    y = Pad(x, pads)
}"""


def shows() -> bool:
    mod = from_onnx(onnx.parser.parse_model(MODEL))
    return "R.call_tir" in mod.script()


DEFECT = Defect(
    title="[ONNX] Pad, Tile, Clip, Einsum and others are imported as kernels",
    kind="missing API",
    happens=(
        "`call_tir` of a TE kernel in the place of relax.nn.pad and the like: no gradient, no "
        "pattern and no layout rule sees what it is."
    ),
    expected="The Relax op, which exists.",
    worked_around_in=(
        "graphgrad.frontend.converters.padding",
        "graphgrad.frontend.converters.shape",
        "graphgrad.frontend.converters.linalg",
        "graphgrad.frontend.converters.elementwise",
    ),
)
