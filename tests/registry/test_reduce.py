"""The gradient of a product, of rows long and short, with and without zeros."""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from tests.running import F64, function, run


@pytest.mark.parametrize("length", [16, 17, 100])
def test_of_a_product_with_zeros(length):
    """Rows without, with one and with two zeros: the last gets no cotangent at all."""
    x = np.random.default_rng(0).uniform(0.5, 1.5, (3, length))
    x[1, 4] = x[2, 0] = x[2, length - 1] = 0.0
    mod = function(lambda b, x: b.emit(relax.op.prod(x, axis=[1])), (x.shape, F64))
    ct = np.array([1.0, 2.0, 3.0])
    product, gradient = run(gg.vjp(mod), "main_vjp", x, ct)
    others = [[np.delete(row, i).prod() for i in range(length)] for row in x]
    np.testing.assert_allclose(gradient, ct[:, None] * np.array(others), rtol=1e-12)
    np.testing.assert_allclose(product, x.prod(axis=1), rtol=1e-12)
    assert gradient[1, 4] != 0 and not gradient[2].any()
