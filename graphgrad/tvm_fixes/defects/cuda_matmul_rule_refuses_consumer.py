import tvm
from tvm import relax, s_tir
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(x: R.Tensor((3, 4, 10, 10), "float32"), w: R.Tensor((8, 4, 5, 5), "float32")):
    with R.dataflow():
        y = R.nn.conv2d(x, w)
        z = R.strided_slice(y, [2, 3], [0, 0], [3, 3])
        R.output(z)
    return z


def shows() -> bool:
    mod = relax.get_pipeline("zero")(tvm.IRModule({"main": main}))
    try:
        with tvm.target.Target({"kind": "cuda", "arch": "sm_90"}):
            s_tir.dlight.ApplyDefaultSchedule(s_tir.dlight.gpu.Matmul())(mod)
    except AssertionError as error:
        return "consumers of the cache-write stage" in str(error)
    return False


DEFECT = Defect(
    title="[Dlight] gpu.Matmul fails on a convolution that is sliced",
    kind="refusal",
    happens=(
        "`AssertionError: There are some consumers of the cache-write stage that are not "
        "properly inlined.` Gradients of strided convolutions have this form."
    ),
    expected="A schedule, or None.",
    worked_around_in=(
        "graphgrad.lower.cuda.schedule",
        "graphgrad.lower.cuda.contraction",
    ),
)
