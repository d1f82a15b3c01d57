import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(
    c: R.Tensor((2, 3), "bool"), x: R.Tensor((3,), "float32"), y: R.Tensor((2, 3), "float32")
) -> R.Tensor((), "float32"):
    with R.dataflow():
        z = R.where(c, x, y)
        loss = R.sum(z)
        R.output(loss)
    return loss


def shows() -> bool:
    mod = relax.transform.Gradient("main", main.params[1])(tvm.IRModule({"main": main}))
    gradient = mod["main_adjoint"].ret_ty.fields[1].fields[0]
    return [int(extent) for extent in gradient.shape] != [3]


DEFECT = Defect(
    title="[Relax] The gradient of a broadcast operand of where has the shape of the result",
    kind="wrong result",
    happens="The operand of shape (3,) gets a gradient of shape (2, 3).",
    expected="Shape (3,): the sum over the broadcast axis.",
    worked_around_in=("graphgrad.registry.elementwise",),
)
