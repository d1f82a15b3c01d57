import onnx.parser
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 8, opset_import: ["": 13, "my.domain": 1]>
f (float[2] x) => (float[2] y)
{
    y = my.domain.Relu(x)
}"""


def shows() -> bool:
    try:
        mod = from_onnx(onnx.parser.parse_model(MODEL))
    except Exception:
        return False
    return "relu" in mod.script()  # whatever my.domain means by the name


DEFECT = Defect(
    title="[ONNX] Operators of other domains are translated as the standard's of the same name",
    kind="wrong result",
    happens="A Relu of my.domain becomes relax.nn.relu.",
    expected="`not supported`, with the domain.",
    worked_around_in=("graphgrad.frontend.stock_operators",),
)
