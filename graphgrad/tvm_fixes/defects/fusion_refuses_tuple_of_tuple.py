import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(c: R.Tensor((), "bool"), x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
    if c:
        p = (x, (x, x))
    else:
        e = R.exp(x)
        p = (e, (e, e))
    with R.dataflow():
        q = p[1]
        y = q[0]
        R.output(y)
    return y


def shows() -> bool:
    try:
        relax.get_pipeline("zero")(tvm.IRModule({"main": main}))
    except Exception as error:
        return "func_info_.global_name" in str(error)
    return False


DEFECT = Defect(
    title=("[FuseTIR] An item that is a tuple, taken in a dataflow block, fails an internal check"),
    kind="refusal",
    happens=(
        '`Check failed: func_info_.global_name != "fused"`, where a block takes a tuple out '
        "of a tuple and an item out of that."
    ),
    expected="The items are taken.",
    worked_around_in=(
        "graphgrad.lower.pipeline",
        "graphgrad.lower.fusion.tuples",
    ),
)
