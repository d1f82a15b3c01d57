import os

import tvm

from ..ledger import Defect


def shows() -> bool:
    before = os.sched_getaffinity(0)
    tvm.get_global_func("runtime.NumThreads")()  # makes the pool
    return os.sched_getaffinity(0) < before or len(before) == 1


DEFECT = Defect(
    title=(
        "[Runtime] The thread pool binds the thread that first computes to half of the processors"
    ),
    kind="wrong result",
    happens=(
        "After the first kernel the calling Python thread may run on these only, and whatever "
        "it starts later as well. The pool counts half of the processors, in fear of "
        "hyper-threads, also where there are none. TVM_BIND_THREADS=0 must be set before."
    ),
    expected="The caller's affinity is its own; processors are counted by their cores.",
    worked_around_in=(
        "graphgrad.runtime.threads",
        "graphgrad.runtime.cores",
    ),
)
