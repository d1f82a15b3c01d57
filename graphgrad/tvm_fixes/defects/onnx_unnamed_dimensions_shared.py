from onnx import TensorProto, helper
from tvm.relax.frontend.onnx import from_onnx

from ..ledger import Defect


def shows() -> bool:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "f", [x], [y])
    (param,) = from_onnx(helper.make_model(graph))["main"].params
    rows, columns = param.ty.shape
    return rows.same_as(columns)  # every input has to be square


DEFECT = Defect(
    title="[ONNX] All dimensions without a name become one variable",
    kind="wrong result",
    happens="An input [?, ?] must be square: a 2 × 4 array is refused when it runs.",
    expected="A variable for each.",
    worked_around_in=("graphgrad.frontend.onnx_shapes",),
)
