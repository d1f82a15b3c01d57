import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    with R.dataflow():
        a = R.exp(x)
        b = R.match_cast(a, R.Tensor((4,), "float32"))
        c = R.negative(a)
        d = R.multiply(b, c)
        R.output(d)
    return d


def shows() -> bool:
    try:
        relax.get_pipeline("zero")(tvm.IRModule({"main": main}))
    except Exception as error:
        return "cyclic dependency" in str(error)
    return False


DEFECT = Defect(
    title="[FuseOps] `cyclic dependency` where a dataflow block holds a match_cast",
    kind="refusal",
    happens=(
        "Fusion does not see that a MatchCast reads its source, and groups the source with "
        "what depends on the cast."
    ),
    expected="The module is fused around the cast.",
    worked_around_in=("graphgrad.lower.pipeline",),
)
