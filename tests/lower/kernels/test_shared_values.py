"""A function that a stage keeps is computed once."""

import pytest
from tvm import te

from graphgrad.lower.kernels.shared_values import share_values
from tests.lower.kernel_programs import run, tensor

ROWS, LENGTH = 64, 256


def of_rows(name, value):
    return te.compute((ROWS, LENGTH), value, name=name)


def exponentials(again, readers=2):
    """Exponentials of rows less a value each, sums of them, and `again`, which may repeat one."""
    x, m = tensor(ROWS, LENGTH, name="x"), tensor(ROWS, name="m")
    kept = of_rows("kept", lambda i, j: te.exp(x[i, j] - m[i]))
    k = te.reduce_axis((0, LENGTH), name="k")
    total = te.compute((ROWS,), lambda i: te.sum(kept[i, k], axis=k), name="total")
    share = of_rows("share", lambda i, j: (kept[i, j] if readers > 1 else x[i, j]) / total[i])
    last = of_rows("last", lambda i, j: share[i, j] * again(x, m, i, j))
    return [x, m], [total, last]


@pytest.mark.parametrize(
    "again, readers, count",
    [
        (lambda x, m, i, j: te.exp(x[i, j] - m[i]), 2, 1),
        (lambda x, m, i, j: te.exp(x[i, j] - m[i]), 1, 2),  # what is not kept is not shared
        (lambda x, m, i, j: te.exp(x[i, LENGTH - 1 - j] - m[i]), 2, 2),
        (lambda x, m, i, j: te.exp(x[i, j] + m[i]), 2, 2),
        (lambda x, m, i, j: te.tanh(x[i, j] - m[i]), 2, 1),
    ],
    ids=["same", "inlined", "another element", "another value", "another function"],
)
def test_functions_are_computed_once(again, readers, count):
    inputs, outputs = exponentials(again, readers)
    func = te.create_prim_func([*inputs, *outputs])
    assert share_values(func).script().count("T.exp(") == count
    run(inputs, outputs).agree()
