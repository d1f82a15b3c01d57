import numpy as np
import onnx.parser
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect

MODEL = """<ir_version: 8, opset_import: ["": 13]>
f (float[1] a, float[1] b, float[1] c) => (float[1] y)
<int64 last = {-1}, int64 at = {1}>
{
    two = SequenceConstruct(a, b)
    three = SequenceInsert(two, c, last)
    y = SequenceAt(three, at)
}"""


def shows() -> bool:
    mod = from_onnx(onnx.parser.parse_model(MODEL))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    arrays = [tvm.runtime.tensor(np.full(1, n, "float32")) for n in (1, 2, 3)]
    return vm["main"](*arrays).numpy()[0] != 3  # the sequence is a, c, b


DEFECT = Defect(
    title="[ONNX] SequenceInsert at a negative position is off by one",
    kind="wrong result",
    happens="At -1 the tensor comes last.",
    expected="Before the last: a, c, b.",
    worked_around_in=("graphgrad.frontend.converters.sequences",),
)
