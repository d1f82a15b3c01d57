import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function(pure=False)
def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
    with R.dataflow():
        _ = R.call_inplace_packed("zero", x, inplace_indices=0, ty_args=R.Tensor((2,), "float32"))
        y = R.exp(x)
        R.output(y)
    return y


def shows() -> bool:
    mod = relax.get_pipeline("zero")(tvm.IRModule({"main": main}))
    return "call_inplace_packed" not in mod.script()


DEFECT = Defect(
    title=(
        "[FuseOps] A call_inplace_packed whose result nobody reads is dropped from a dataflow block"
    ),
    kind="wrong result",
    happens=(
        "The call has an effect, its argument is overwritten; the zero pipeline removes it as "
        "dead code."
    ),
    expected="It stays; or a dataflow block with such a call is ill-formed.",
    worked_around_in=("graphgrad.memory.effect_order",),
)
