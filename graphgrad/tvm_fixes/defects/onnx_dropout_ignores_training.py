import numpy as np
import onnx.parser
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 8, opset_import: ["": 13]>
f (float[64] x) => (float[64] y)
<float ratio = {0.5}, bool training = {1}>
{
    y = Dropout(x, ratio, training)
}"""


def shows() -> bool:
    mod = from_onnx(onnx.parser.parse_model(MODEL))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    y = vm["main"](tvm.runtime.tensor(np.ones(64, "float32")))
    return (y.numpy() == 1).all()  # none was dropped


DEFECT = Defect(
    title="[ONNX] The input training_mode of Dropout is ignored",
    kind="wrong result",
    happens=(
        "All elements are kept, though training_mode is true. The mask is float32 instead of bool."
    ),
    expected="Dropout; or an error while Relax has none.",
    worked_around_in=("graphgrad.frontend.converters.random",),
)
