import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((1, 1, 8, 8), "float32"), w: R.Tensor((1, 1, 3, 3), "float32")) -> R.Tensor(
    (), "float32"
):
    with R.dataflow():
        y = R.nn.conv2d(x, w, dilation=(2, 2))
        loss = R.sum(y)
        R.output(loss)
    return loss


def shows() -> bool:
    try:
        relax.transform.Gradient("main")(tvm.IRModule({"main": main}))
    except Exception as error:
        return "output padding less than the strides" in str(error)
    return False


DEFECT = Defect(
    title="[Relax] The gradient of a dilated conv2d is refused",
    kind="refusal",
    happens=(
        "The rule computes the output padding of the transposed convolution from the kernel "
        "without its dilation: `Conv2dTranspose expects the output padding less than the "
        "strides`."
    ),
    expected="A gradient.",
    worked_around_in=("graphgrad.registry.conv",),
)
