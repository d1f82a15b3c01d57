import numpy as np
import tvm
from tvm import te

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((12,), "float32", name="x")
    y = te.compute((6, 1), lambda i, j: x[i % 3 + (i + 2) % 3 * 3], name="y")
    result = tvm.runtime.tensor(np.zeros((6, 1), "float32"))
    kernel = tvm.compile(te.create_prim_func([x, y]), "llvm")
    kernel(tvm.runtime.tensor(np.arange(12, dtype="float32")), result)
    return result.numpy()[:, 0].tolist() != [i % 3 + (i + 2) % 3 * 3 for i in range(6)]


DEFECT = Defect(
    title=(
        "[FlattenBuffer] Divisions of one loop by different dividends share one padding: "
        "wrong addresses"
    ),
    kind="wrong result",
    happens=(
        "`iter_affine_map.cc` pads a loop such that dividends start at a multiple of the "
        "divisor, once for all places of the loop. `i % 3 + (i + 2) % 3 * 3` becomes `(i + 2) "
        "% 3 * 4`: 8 0 4 8 0 4."
    ),
    expected="6 1 5 6 1 5. The index is left as it is where divisions need different paddings.",
    worked_around_in=("graphgrad.ir.exact_divisions",),
)
