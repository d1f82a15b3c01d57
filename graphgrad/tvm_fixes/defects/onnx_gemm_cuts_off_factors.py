import numpy as np
import onnx.parser
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 8, opset_import: ["": 13]>
f (int32[1, 1] a, int32[1, 1] b) => (int32[1, 1] y)
{
    y = Gemm<alpha = 0.5>(a, b)
}"""


def shows() -> bool:
    vm = relax.VirtualMachine(
        tvm.compile(from_onnx(onnx.parser.parse_model(MODEL)), "llvm"), tvm.cpu()
    )
    four = tvm.runtime.tensor(np.full((1, 1), 4, "int32"))
    return vm["main"](four, four).numpy().item() == 0


DEFECT = Defect(
    title="[ONNX] Gemm of integers cuts off the digits of alpha and beta",
    kind="wrong result",
    happens="0.5 becomes an int32, which is 0, and so is the product.",
    expected="8, or an error.",
    worked_around_in=("graphgrad.frontend.stock_operators",),
)
