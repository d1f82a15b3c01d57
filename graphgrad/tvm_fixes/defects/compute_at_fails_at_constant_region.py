from tvm import s_tir
from tvm.script import tirx as T

from ..ledger import Defect


@T.prim_func(s_tir=True)
def main(x: T.Buffer((1, 4), "float32"), y: T.Buffer((1, 4), "float32")):
    with T.sblock("root"):
        kept = T.sblock_alloc_buffer((1, 4), "float32")
        for i, j in T.grid(1, 4):
            with T.sblock("doubled"):
                vi, vj = T.axis.remap("SS", [i, j])
                kept[vi, vj] = x[vi, vj] * T.float32(2)
        for i, j in T.grid(1, 4):
            with T.sblock("added"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.reads(kept[0, 0:4])
                T.writes(y[vi, vj])
                y[vi, vj] = kept[vi, vj] + T.float32(1)


def shows() -> bool:
    schedule = s_tir.Schedule(main)
    loop = schedule.get_loops(schedule.get_sblock("doubled"))[1]
    try:
        schedule.reverse_compute_at(schedule.get_sblock("added"), loop)
    except ValueError as error:
        return "pattern match failed: 0" in str(error)
    return False


DEFECT = Defect(
    title="[Schedule] reverse_compute_at: a check fails where a block reads a constant index",
    kind="refusal",
    happens=(
        "Along the axis of one element the region that the block reads is 0, in which no variable "
        "of the block is found: the check ends in a ValueError, which is no ScheduleError."
    ),
    expected="The block is computed in the loop: along that axis all of its one element.",
    worked_around_in=("graphgrad.lower.cpu.reduction",),
)
