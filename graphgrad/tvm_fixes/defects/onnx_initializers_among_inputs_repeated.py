import onnx.parser
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 3, opset_import: ["": 8]>
f (float[2] x, float[2] w) => (float[2] y)
<float[2] w = {1, 2}>
{
    y = Add(x, w)
}"""


def shows() -> bool:
    mod = from_onnx(onnx.parser.parse_model(MODEL), keep_params_in_input=True)
    names = [param.name for param in mod["main"].params]
    return names.count("w") == 2


DEFECT = Defect(
    title="[ONNX] Initializers that are listed among the inputs become two parameters",
    kind="wrong result",
    happens=(
        "Files of IR version 3 list all; with keep_params_in_input each becomes an input and "
        "a parameter of the same name, and the function is ill-formed. 8 of the 9 light "
        "models of the zoo fail on that."
    ),
    expected="One parameter.",
    worked_around_in=("graphgrad.frontend.onnx_repair",),
)
