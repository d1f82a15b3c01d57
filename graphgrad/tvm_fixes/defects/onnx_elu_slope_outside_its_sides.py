import numpy as np
import onnx.parser
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 8, opset_import: ["": 13]>
f (float[1] x) => (float loss)
{
    y = Elu<alpha = 2.0>(x)
    loss = ReduceSum<keepdims = 0>(y)
}"""


def shows() -> bool:
    mod = relax.transform.Gradient("main")(from_onnx(onnx.parser.parse_model(MODEL)))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    _, (gradient,) = vm["main_adjoint"](tvm.runtime.tensor(np.zeros(1, "float32")))
    return gradient.numpy()[0] == 3


DEFECT = Defect(
    title=(
        "[ONNX] Elu and Selu are composed of two relus: their gradient at 0 is that of neither side"
    ),
    kind="wrong result",
    happens=(
        "With alpha = 2 the slope at 0 is 3; that on the left is 2, on the right 1. relu'(0) "
        "is 1 besides."
    ),
    expected="A slope from 1 to 2.",
    worked_around_in=("graphgrad.frontend.converters.activation",),
)
