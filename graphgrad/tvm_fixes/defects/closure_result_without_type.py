import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
    y = R.exp(x)

    @R.function
    def add(a: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
        b = R.add(a, y)
        return b

    z = add(x)
    w = R.exp(z)
    return w


def shows() -> bool:
    mod = relax.transform.LambdaLift()(tvm.IRModule({"main": main}))
    try:
        tvm.compile(mod, "llvm")
    except Exception as error:
        return "given R.Any" in str(error)
    return False


DEFECT = Defect(
    title="[LambdaLift] The result of a lifted closure loses its type, and no kernel takes it",
    kind="refusal",
    happens=(
        "`invoke_pure_closure` gets the type Any: `Argument 0 type mismatch: expected "
        "R.Tensor((2,)), given R.Any` for exp of the result."
    ),
    expected="The type that the local function declares.",
    worked_around_in=("graphgrad.lower.graph.direct_calls",),
)
