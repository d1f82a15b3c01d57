import tvm
from tvm import s_tir, te

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((40,), "float32", name="x")
    k = te.reduce_axis((0, 40), "k")
    total = te.compute((), lambda: te.sum(x[k], axis=k), name="total")
    mean = te.compute((), lambda: total() / 40.0, name="mean")
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    try:
        with target:
            s_tir.dlight.gpu.Reduction().apply(te.create_prim_func([x, mean]), target, False)
    except Exception as error:
        return "block_realize == old_block_realize_" in str(error)
    return False


DEFECT = Defect(
    title="[Dlight] gpu.Reduction fails on a full reduction with an epilogue",
    kind="refusal",
    happens=(
        "`Check failed: block_realize == old_block_realize_.get()`, for the mean of a vector "
        "and for cross entropy. The exception ends the scheduling of the whole module."
    ),
    expected="A schedule, or None.",
    worked_around_in=(
        "graphgrad.lower.cuda.schedule",
        "graphgrad.lower.cuda.reduction",
    ),
)
