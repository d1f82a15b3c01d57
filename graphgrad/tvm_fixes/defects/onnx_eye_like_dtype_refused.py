import onnx.parser
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 8, opset_import: ["": 9]>
f (float[2, 2] x) => (double[2, 2] y)
{
    y = EyeLike<dtype = 11>(x)
}"""


def shows() -> bool:
    try:
        from_onnx(onnx.parser.parse_model(MODEL))
    except ValueError as error:
        return "dtype mismatch" in str(error)
    return False


DEFECT = Defect(
    title="[ONNX] EyeLike refuses a dtype that is not the input's",
    kind="refusal",
    happens="`dtype mismatch between input (float32) and attribute (11)`.",
    expected="Ones and zeros of the dtype that is asked for, which is all that the attribute says.",
    worked_around_in=("graphgrad.frontend.converters.creation",),
)
