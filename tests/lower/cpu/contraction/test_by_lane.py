"""Factors that are loaded in vectors, by whose lanes a processor multiplies, run on this one."""

import pytest
from tvm import te

from graphgrad.lower.cpu.tuning import NEON
from tests.lower import kernel_programs
from tests.lower.kernel_programs import run, tensor

ALONG_TERMS, ALONG_ROWS = lambda x, i, k: x[i, k], lambda x, i, k: x[k, i]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "read, rows, terms",
    [
        (ALONG_TERMS, 64, 600),
        (ALONG_TERMS, 67, 600),  # a last tile of fewer rows
        (ALONG_ROWS, 64, 601),
    ],
)
def test_products(monkeypatch, read, rows, terms, dtype):
    monkeypatch.setattr(kernel_programs, "UNIT", NEON)
    shape = (rows, terms) if read is ALONG_TERMS else (terms, rows)
    x, w = tensor(*shape, dtype=dtype, name="x"), tensor(terms, 48, dtype=dtype, name="w")
    k = te.reduce_axis((0, terms), name="k")
    y = te.compute((rows, 48), lambda i, j: te.sum(read(x, i, k) * w[k, j], axis=k), name="y")
    runs = run([x, w], [y])
    runs.agree()
    assert "held" in runs.text
