import onnx.parser
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 8, opset_import: ["": 13]>
f (float[7] x) => (float[n] y)
<int64 split = {5}, int64 first = {0}>
{
    parts = SplitToSequence<axis = 0>(x, split)
    y = SequenceAt(parts, first)
}"""


def shows() -> bool:
    mod = from_onnx(onnx.parser.parse_model(MODEL))
    return int(mod["main"].ret_ty.shape[0]) != 5


DEFECT = Defect(
    title=(
        "[ONNX] SplitToSequence makes equal parts where the standard asks for parts of one extent"
    ),
    kind="wrong result",
    happens="7 by 5 is split into 4 and 3.",
    expected="5 and 2.",
    worked_around_in=("graphgrad.frontend.converters.sequences",),
)
