"""Derivatives where indices repeat, where factors are zero, and where indices point outside."""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from tests.peers import peer
from tests.running import F64, function, run

op = relax.op


def gradients(build, *arrays, ct):
    """Return the gradients of the float arrays, for a cotangent."""
    types = [(array.shape, str(array.dtype)) for array in arrays]
    mod = gg.vjp(function(lambda builder, *x: builder.emit(build(*x)), *types))
    return run(mod, "main_vjp", *arrays, ct)[1:]


def scatter(reduction):
    return lambda x, i, u: op.scatter_elements(x, i, u, axis=0, reduction=reduction)


INDEX = np.array([0, 0, 2, 0, 2])
CT = np.array([1.0, 10.0, 100.0])


def test_only_the_last_update_has_a_gradient():
    x, u = np.zeros(3), np.ones(5)
    x_bar, u_bar = gradients(scatter("update"), x, INDEX, u, ct=CT)
    assert x_bar.tolist() == [0, 10, 0]
    assert u_bar.tolist() == [0, 0, 0, 1, 100]


def test_values_that_are_not_finite_do_not_reach_what_was_replaced():
    ct = np.array([np.inf, 10.0, np.nan])
    x_bar, u_bar = gradients(scatter("update"), np.zeros(3), INDEX, np.ones(5), ct=ct)
    assert x_bar.tolist() == [0, 10, 0]
    np.testing.assert_array_equal(u_bar, [0, 0, 0, np.inf, np.nan])


@pytest.mark.parametrize(
    "u", [[2.0, 3, 4, 5, 6], [0.0, 3, 4, 5, 6], [0.0, 3, 0, 0, 6]], ids=["none", "one", "two"]
)
def test_products_with_zeros_have_gradients_without_division(u):
    torch = peer("torch")
    x, u = np.array([7.0, 8, 9]), np.array(u)
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, u)]
    rows = [leaves[0][0], *leaves[1][[0, 1, 3]]], [leaves[0][1]], [leaves[0][2], *leaves[1][[2, 4]]]
    y = torch.stack([torch.stack(list(row)).prod() for row in rows])
    y.backward(torch.tensor(CT))
    for ours, leaf in zip(gradients(scatter("mul"), x, INDEX, u, ct=CT), leaves, strict=True):
        np.testing.assert_array_equal(ours, leaf.grad.numpy())


@pytest.mark.parametrize(("reduction", "name"), [("min", "amin"), ("max", "amax")])
def test_ties_share_the_gradient(reduction, name):
    torch = peer("torch")
    x, u = np.array([1.0, 2, 3]), np.array([1.0, 1, 5, 1, 5])
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, u)]
    y = leaves[0].scatter_reduce(0, torch.tensor(INDEX), leaves[1], name)
    y.backward(torch.tensor(CT))
    for ours, leaf in zip(gradients(scatter(reduction), x, INDEX, u, ct=CT), leaves, strict=True):
        np.testing.assert_allclose(ours, leaf.grad.numpy(), rtol=1e-15)


def test_what_points_outside_has_no_gradient():
    x, index = np.arange(3.0), np.array([5, -1, -9])
    (x_bar,) = gradients(lambda x, i: op.take(x, i, axis=0), x, index, ct=CT)
    assert x_bar.tolist() == [0, 0, 10]
    u = np.ones(3)
    x_bar, u_bar = gradients(scatter("update"), x, index, u, ct=CT)
    assert (x_bar.tolist(), u_bar.tolist()) == ([1, 10, 0], [0, 100, 0])


@pytest.mark.parametrize("zeros", [[], [1], [1, 3]])
@pytest.mark.parametrize("axis", [0, 1])
def test_cumprod_with_zeros(zeros, axis):
    torch = peer("torch")
    x = np.random.default_rng(0).uniform(1, 2, (5, 5))
    x[zeros] = 0
    x = x if axis == 0 else x.T.copy()
    ct = np.random.default_rng(1).uniform(-1, 1, x.shape)
    leaf = torch.tensor(x, requires_grad=True)
    torch.cumprod(leaf, axis).backward(torch.tensor(ct))
    (x_bar,) = gradients(lambda x: op.cumprod(x, axis), x, ct=ct)
    np.testing.assert_allclose(x_bar, leaf.grad.numpy(), rtol=1e-13, atol=1e-15)


def test_second_derivative_of_a_product_at_zero():
    """y = x₀ u₀ u₁ u₂ at u₀ = 0: ∂²y / ∂u₀ ∂u₁ = x₀ u₂, which a division by u₀ would lose."""
    x, u, index = np.array([7.0]), np.array([0.0, 3.0, 5.0]), np.zeros(3, "int64")

    def build(x, i, u):
        return op.scatter_elements(x, i, u, axis=0, reduction="mul")

    types = [((1,), F64), ((3,), "int64"), ((3,), F64)]
    first = gg.vjp(function(lambda b, *a: b.emit(build(*a)), *types))
    second = gg.vjp(first, "main_vjp")
    one, no_ct = np.ones(1), [np.zeros(1), np.zeros(1)]
    along_first = np.array([1.0, 0.0, 0.0])  # of ∂y/∂u₀
    results = run(second, "main_vjp_vjp", x, index, u, one, *no_ct, along_first)
    hessian_row = results[-2]
    np.testing.assert_array_equal(hessian_row, [0, 35, 21])


def test_the_order_of_updates_holds_with_threads():
    """Columns are shared among threads; within one, the updates of a row go in order."""
    generator = np.random.default_rng(0)
    x, index = generator.normal(size=(4, 700)), generator.integers(0, 4, (50, 1))
    u = generator.normal(size=(50, 700))
    index = np.broadcast_to(index, u.shape).copy()
    ct = generator.normal(size=x.shape)
    x_bar, u_bar = gradients(scatter("update"), x, index, u, ct=ct)
    last = {row: k for k, row in enumerate(index[:, 0])}
    expected = np.zeros_like(u)
    for row, k in last.items():
        expected[k] = ct[row]
    np.testing.assert_array_equal(u_bar, expected)
    np.testing.assert_array_equal(x_bar, np.where(np.isin(range(4), list(last))[:, None], 0, ct))
