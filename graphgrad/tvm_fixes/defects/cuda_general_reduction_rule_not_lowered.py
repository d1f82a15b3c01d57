import tvm
from tvm import relax, s_tir
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(ct: R.Tensor((4, 3, 5, 5), "float32"), x: R.Tensor((4, 3, 10, 10), "float32")):
    y = R.grad.max_pool2d_backward(ct, x, pool_size=[2, 2], strides=[2, 2])
    return y


def shows() -> bool:
    mod = relax.transform.LegalizeOps()(tvm.IRModule({"main": main}))
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    with target:
        mod = s_tir.dlight.ApplyDefaultSchedule(s_tir.dlight.gpu.GeneralReduction())(mod)
    try:
        tvm.compile(mod, target)
    except Exception as error:
        return "No matched reducer" in str(error)
    return False


DEFECT = Defect(
    title=(
        "[Dlight] What gpu.GeneralReduction makes of max_pool2d_backward is refused by "
        "LowerThreadAllreduce"
    ),
    kind="refusal",
    happens="`No matched reducer for the identity and the combiner of the reduction block`.",
    expected="A schedule that can be lowered, or None.",
    worked_around_in=("graphgrad.lower.cuda.schedule",),
)
