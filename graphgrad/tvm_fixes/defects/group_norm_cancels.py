import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from ..ledger import Defect


@R.function
def main(
    x: R.Tensor((2, 8), "float32"), g: R.Tensor((8,), "float32"), b: R.Tensor((8,), "float32")
):
    y = R.nn.group_norm(x, g, b, num_groups=2, channel_axis=1, axes=[])
    return y


def shows() -> bool:
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule({"main": main}), "llvm"), tvm.cpu())
    x = (1e4 + np.arange(16) % 5).astype("float32").reshape(2, 8)
    ones, zeros = np.ones(8, "float32"), np.zeros(8, "float32")
    y = vm["main"](*map(tvm.runtime.tensor, (x, ones, zeros))).numpy()
    groups = x.astype("float64").reshape(2, 2, 4)
    centered = groups - groups.mean(2, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(2, keepdims=True) + 1e-5)
    return not np.allclose(y, expected.reshape(2, 8), atol=0.1)


DEFECT = Defect(
    title=(
        "[Topi] group_norm and instance_norm take E[x²] - E[x]²: no digit is left where the "
        "mean is large"
    ),
    kind="wrong result",
    happens="Of numbers around 1e4 that differ by units the result is arbitrary.",
    expected="(x - mean) / sqrt(variance + 1e-5), to float32's digits.",
    worked_around_in=("graphgrad.ops.norm",),
)
