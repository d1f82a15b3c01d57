import numpy as np
import tvm
from tvm.script import tirx as T

from ..ledger import Defect


@T.prim_func(s_tir=True)
def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    with T.sblock("root"):
        kept = T.sblock_alloc_buffer((8,), "float32")
        for i in T.vectorized(8):
            kept[i] = x[i] + T.float32(1)
            y[i] = kept[i] * kept[i]


def shows() -> bool:
    values = np.arange(8, dtype="float32")
    result = tvm.runtime.tensor(np.zeros(8, "float32"))
    tvm.compile(main, "llvm")(tvm.runtime.tensor(values), result)
    return result.numpy().tolist() != ((values + 1) ** 2).tolist()


DEFECT = Defect(
    title="[Passes] A buffer that one vectorized loop alone accesses is shrunk to one element",
    kind="wrong result",
    happens=(
        "The buffer is compacted to what one iteration uses and moved into the loop, which is "
        "then vectorized: all lanes share one element, and each result is that of the last "
        "lane, 64."
    ),
    expected="(x + 1)²: a vectorized loop keeps an element for each lane.",
    worked_around_in=(
        "graphgrad.lower.cpu.vector_math",
        "graphgrad.ops.tensor_table",
        "graphgrad.lower.cpu.rowwise.emit",
    ),
)
