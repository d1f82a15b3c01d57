import os
import signal
import time

import numpy as np
import tvm
from tvm.script import tirx as T

from ..ledger import Defect


@T.prim_func(s_tir=True)
def fill(y: T.Buffer((8,), "float32")):
    for i in T.parallel(8):
        y[i] = T.float32(1)


def shows() -> bool:
    os.environ["TVM_NUM_THREADS"] = "2"
    kernel, y = tvm.compile(fill, "llvm"), tvm.runtime.tensor(np.zeros(8, "float32"))
    kernel(y)
    child = os.fork()
    if not child:
        kernel(y)
        os._exit(0)
    time.sleep(1)
    ended, _ = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return not ended


DEFECT = Defect(
    title="[Runtime] A forked process waits for ever for threads that it does not have",
    kind="crash",
    happens=(
        "A parallel kernel in a child process waits for the pool of the parent, of which fork "
        "copies the memory alone."
    ),
    expected="The child makes a pool of its own (pthread_atfork), or computes alone.",
    worked_around_in=("graphgrad.runtime.threads",),
)
