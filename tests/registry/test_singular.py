"""Gradients at points where a factor of the formula is infinite, or an element is zero."""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from tests.peers import peer
from tests.running import F64, function, run

op = relax.op


def gradients(build, *arrays, cotangent=None):
    """Return the value and the gradients of an op, for ones as the cotangent."""
    types = [(a.shape, F64) for a in arrays]
    mod = gg.vjp(function(lambda builder, *x: builder.emit(build(*x)), *types))
    y = run(mod, "main", *arrays)[0]
    ct = np.ones_like(y) if cotangent is None else cotangent
    return run(mod, "main_vjp", *arrays, ct)


BASES = np.array([0.0, 0.0, 0.0, 0.0, -2.0, -2.0, 2.0])
EXPONENTS = np.array([0.0, 1.0, 2.0, 0.5, 2.0, -1.0, 0.0])


def test_power_of_zero_and_of_negative_bases():
    torch = peer("torch")
    a, b = (torch.tensor(x, requires_grad=True) for x in (BASES, EXPONENTS))
    y = torch.pow(a, b)
    y.sum().backward()
    value, by_base, by_exponent = gradients(op.power, BASES, EXPONENTS)
    np.testing.assert_array_equal(value, y.detach().numpy())
    np.testing.assert_array_equal(by_base, a.grad.numpy())
    np.testing.assert_array_equal(by_exponent, b.grad.numpy())


def test_mixed_derivative_of_power_at_exponent_zero():
    mod = gg.vjp(function(lambda b, x, y: b.emit(op.power(x, y)), ((1,), F64), ((1,), F64)))
    mod = gg.vjp(mod, "main_vjp")
    a, zero, one = np.array([3.0]), np.array([0.0]), np.array([1.0])
    # Of the outputs (y, ā, b̄) only ā gets a cotangent: its derivative by b is 1 / a.
    by_exponent = run(mod, "main_vjp_vjp", a, zero, one, zero, one, zero)[4]
    np.testing.assert_allclose(by_exponent, 1 / 3)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_constant_power_at_zero(exponent):
    _, gradient = gradients(lambda x: op.power(x, relax.const(exponent, F64)), np.zeros(1))
    assert gradient.tolist() == [{0.0: 0.0, 1.0: 1.0, 2.0: 0.0}[exponent]]


@pytest.mark.parametrize("zeros", range(4))
def test_product_with_zeros(zeros):
    x = np.array([[2.0, -3.0, 0.5, 4.0], [1.0, 2.0, 3.0, 4.0]])
    x[0, :zeros] = 0.0
    expected = [[np.prod(np.delete(row, position)) for position in range(row.size)] for row in x]
    _, gradient = gradients(lambda x: op.prod(x, axis=[1]), x)
    np.testing.assert_allclose(gradient, expected, rtol=1e-14)


def test_deviation_of_equal_elements_has_slope_zero():
    x = np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 4.0]])
    _, gradient = gradients(lambda x: op.std(x, axis=[1]), x)
    assert gradient[0].tolist() == [0.0, 0.0, 0.0]
    assert gradient[1].all()


def test_arc_tangent_at_the_origin():
    for gradient in gradients(op.atan2, np.zeros(1), np.zeros(1))[1:]:
        assert gradient.tolist() == [0.0]


def test_equal_infinities_share_the_gradient_of_log_add_exp():
    infinite = np.array([-np.inf, np.inf])
    for gradient in gradients(op.log_add_exp, infinite, infinite)[1:]:
        assert gradient.tolist() == [0.5, 0.5]


def test_ends_of_the_arc_sine_behind_a_mask():
    _, gradient = gradients(op.asin, np.array([1.0, 0.0]), cotangent=np.array([0.0, 1.0]))
    assert gradient.tolist() == [0.0, 1.0]


def test_ties_of_three_share_equally():
    _, gradient = gradients(op.max, np.array([1.0, 3.0, 3.0, 3.0]))
    np.testing.assert_allclose(gradient, [0, 1 / 3, 1 / 3, 1 / 3])


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremum_of_nothing(name):
    _, gradient = gradients(lambda x: getattr(op, name)(x, axis=[1]), np.zeros((2, 0)))
    assert gradient.shape == (2, 0)


def test_an_exponential_that_overflows_behind_a_mask():
    def build(x):
        return op.where(op.less(x, relax.const(0.0, F64)), op.exp(x), x)

    _, gradient = gradients(build, np.array([-1.0, 1e4]))
    np.testing.assert_allclose(gradient, [np.exp(-1.0), 1.0])


@pytest.mark.parametrize("softmax", [op.nn.softmax, op.nn.log_softmax], ids=["softmax", "log"])
def test_a_row_that_may_attend_nothing_behind_a_mask(softmax):
    """Its scores are −∞ and its softmax NaN; where that is not chosen, no gradient is NaN."""

    def build(x):
        y = softmax(x)
        return op.where(op.isnan(y), relax.const(0.0, F64), y)

    x = np.array([[1.0, 2.0, 0.5], [-np.inf] * 3])
    ct = np.array([[1.0, -2.0, 3.0]] * 2)
    value, gradient = gradients(build, x, cotangent=ct)
    np.testing.assert_array_equal(value[1], 0.0)
    np.testing.assert_array_equal(gradient[1], 0.0)
    np.testing.assert_array_equal(gradient[:1], gradients(softmax, x[:1], cotangent=ct[:1])[1])


def test_second_order_where_the_cotangent_happens_to_be_zero():
    """The Hessian of Σ (a / b − 1)² by a is 2 / b², also at its minimum."""

    def loss(builder, a, b):
        difference = builder.emit(op.subtract(op.divide(a, b), relax.const(1.0, F64)))
        return builder.emit(op.sum(op.square(difference)))

    mod = gg.vjp(function(loss, ((3,), F64), ((3,), F64)), wrt=["x0"])
    mod = gg.vjp(mod, "main_vjp", wrt=["x0"])
    b, v = np.array([2.0, 3.0, 4.0]), np.array([1.0, -1.0, 0.5])
    *_, product = run(mod, "main_vjp_vjp", b, b, np.float64(1), np.float64(0), v)
    np.testing.assert_allclose(product, 2 / b**2 * v)
