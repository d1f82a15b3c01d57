import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((3,), "float32"), i: R.Tensor((2, 2), "int64")) -> R.Tensor((), "float32"):
    with R.dataflow():
        y = R.take(x, i, axis=0)
        loss = R.sum(y)
        R.output(loss)
    return loss


def shows() -> bool:
    mod = relax.transform.Gradient("main", main.params[0])(tvm.IRModule({"main": main}))
    try:
        tvm.compile(mod, "llvm")
    except AssertionError:
        return True
    return False


DEFECT = Defect(
    title="[Relax] take_backward of indices of two axes fails a bare assertion",
    kind="refusal",
    happens="`Gradient` makes a call that legalization refuses with an empty AssertionError.",
    expected="The gradient: embeddings of a batch of sequences are taken so.",
    worked_around_in=("graphgrad.registry.index",),
)
