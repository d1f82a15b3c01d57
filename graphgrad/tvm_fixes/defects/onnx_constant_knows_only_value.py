import onnx.parser
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 8, opset_import: ["": 13]>
f (float[2] x) => (float[2] y)
{
    two = Constant<value_float = 2.0>()
    y = Mul(x, two)
}"""


def shows() -> bool:
    try:
        from_onnx(onnx.parser.parse_model(MODEL))
    except ValueError as error:
        return "no value in Constant" in str(error)
    return False


DEFECT = Defect(
    title="[ONNX] Constant has no value_float, value_int, value_ints",
    kind="refusal",
    happens="`no value in Constant`. torch's exporter writes value_ints.",
    expected="The tensor of the standard.",
    worked_around_in=("graphgrad.frontend.onnx_constants",),
)
