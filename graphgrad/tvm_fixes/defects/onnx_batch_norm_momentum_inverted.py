import numpy as np
import onnx.parser
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 8, opset_import: ["": 15]>
f (float[2, 1] x, float[1] g, float[1] b, float[1] old, float[1] v)
    => (float[2, 1] y, float[1] mean, float[1] variance)
{
    y, mean, variance = BatchNormalization<momentum = 0.9, training_mode = 1>(x, g, b, old, v)
}"""


def shows() -> bool:
    mod = from_onnx(onnx.parser.parse_model(MODEL))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    arrays = [np.ones((2, 1)), np.ones(1), np.zeros(1), np.zeros(1), np.ones(1)]
    _, mean, _ = vm["main"](*(tvm.runtime.tensor(a.astype("float32")) for a in arrays))
    return not np.allclose(mean.numpy(), 0.9 * 0 + (1 - 0.9) * 1)


DEFECT = Defect(
    title="[ONNX] The momentum of BatchNormalization is inverted on import",
    kind="wrong result",
    happens=(
        "ONNX keeps `momentum` of the old statistics, Relax takes `momentum` of the new ones; "
        "the number is copied. Running means are wrong unless it is 0.5."
    ),
    expected="0.1 for an old mean of 0 and a batch's of 1.",
    worked_around_in=("graphgrad.frontend.stock_operators",),
)
