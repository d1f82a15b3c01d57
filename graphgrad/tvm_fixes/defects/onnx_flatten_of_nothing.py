import onnx.parser
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 8, opset_import: ["": 13]>
f (float[1, 2, 3] x) => (float[r, c] y)
<int64[1] zero = {0}>
{
    nothing = Slice(x, zero, zero)
    y = Flatten<axis = 1>(nothing)
}"""


def shows() -> bool:
    mod = from_onnx(onnx.parser.parse_model(MODEL))
    return int(mod["main"].ret_ty.shape[1]) != 6


DEFECT = Defect(
    title="[ONNX] Flatten of a tensor without elements has no columns",
    kind="wrong result",
    happens="The shape is (0, 0): the columns are what is left of 0 elements.",
    expected="(0, 6).",
    worked_around_in=("graphgrad.frontend.converters.shape",),
)
