from tvm import te
from tvm.s_tir import Schedule

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((40,), "float32", name="x")
    k = te.reduce_axis((0, 40), "k")
    total = te.compute((), lambda: te.sum(x[k], axis=k), name="total")
    mean = te.compute((), lambda: total() / 40.0, name="mean")
    sch = Schedule(te.create_prim_func([x, mean]))
    lanes, _ = sch.split(sch.get_loops(sch.get_sblock("total"))[0], [8, None])
    try:
        sch.rfactor(lanes, 0)
    except Exception as error:
        return "block_realize == old_block_realize_" in str(error)
    return False


DEFECT = Defect(
    title="[S-TIR] rfactor fails beside a block that is in no loop",
    kind="refusal",
    happens=(
        "`Check failed: block_realize == old_block_realize_.get()`. The block that replaces the "
        "reduction is looked for in all statements beside it, and the block of a scalar is taken "
        "for the reduction's. With a loop of one trip around that block, it works."
    ),
    expected="A reduction in two stages, as without the block.",
    worked_around_in=("graphgrad.lower.cpu.schedule",),
)
