import numpy as np
import tvm
from tvm import te

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((12,), "float32", name="x")
    y = te.compute((6, 1), lambda i, j: x[(5 - i) // 2], name="y")
    result = tvm.runtime.tensor(np.zeros((6, 1), "float32"))
    kernel = tvm.compile(te.create_prim_func([x, y]), "llvm")
    kernel(tvm.runtime.tensor(np.arange(12, dtype="float32")), result)
    return result.numpy()[:, 0].tolist() != [2, 2, 1, 1, 0, 0]


DEFECT = Defect(
    title=(
        "[FlattenBuffer] The constant of a falling dividend is lost: (5 - i) // 2 is read as "
        "i // -2"
    ),
    kind="wrong result",
    happens=(
        "Where addresses are computed, `iter_affine_map.cc` takes the factor -1 out of a "
        "dividend and divides by a negative divisor; the constant is gone. The kernel returns "
        "2 1 1 0 0 0 for `x[(5 - i) // 2]`. A remainder of a falling dividend goes the same "
        "way."
    ),
    expected="2 2 1 1 0 0.",
    worked_around_in=("graphgrad.ir.exact_divisions",),
)
