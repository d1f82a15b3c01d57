"""Which stages of a gradient get a kernel of their own: those of recurrences that several need."""

from tvm import te, topi

import graphgrad as gg
from graphgrad.fallback.graph import operations
from graphgrad.fallback.kernels.expressions import kernel_of
from graphgrad.fallback.kernels.gradient import gradient_kernels
from graphgrad.fallback.kernels.shared import shared_stages


def recurrence():
    """S[t] = tanh(S[t − 1] W + x[t]), with W and x."""
    x, w = (te.placeholder(s, "float64", name=n) for s, n in (((5, 2), "x"), ((2, 2), "w")))
    state = te.placeholder((5, 2), "float64", name="S")
    k = te.reduce_axis((0, 2), name="k")
    product = te.compute(
        (5, 2), lambda t, i: te.sum(state(t - 1, k) * w(k, i), axis=k), name="product"
    )
    update = te.compute((5, 2), lambda t, i: te.tanh(product(t, i) + x(t, i)), name="update")
    first = te.compute((1, 2), lambda _, i: x(0, i), name="first")
    return te.scan(first, update, state), x, w


def test_the_loop_backwards_is_shared():
    states, *inputs = recurrence()
    head = te.placeholder(states.shape, "float64", name="head")
    shared = shared_stages(gg.te_gradient(states, inputs, head))
    assert [isinstance(op, te.ScanOp) for op in shared].count(True) >= 1
    # Each stands behind what it reads.
    for number, op in enumerate(shared):
        behind = operations(op.output(0))
        assert not any(other.same_as(later) for other in behind for later in shared[number + 1 :])


def test_one_gradient_shares_nothing():
    states, x, _ = recurrence()
    head = te.placeholder(states.shape, "float64", name="head")
    assert not any(isinstance(op, te.ScanOp) for op in shared_stages(gg.te_gradient(states, x)))
    assert shared_stages(gg.te_gradient(states, [x], head)) == []


def test_a_cotangent_that_takes_sums_is_shared():
    x, y = (
        te.placeholder((4, 8), "float64", name="x"),
        te.placeholder((8, 6), "float64", name="y"),
    )
    head = te.placeholder((4, 6), "float64", name="head")
    gradients = gg.te_gradient(topi.nn.softmax(topi.matmul(x, y)), [x, y], head)
    # Of the scores, from which both gradients are products with the other factor.
    stage = shared_stages(gradients)[-1]
    assert [int(n) for n in stage.output(0).shape] == [4, 6]


def test_what_costs_a_pass_over_memory_is_computed_again():
    x, y = (te.placeholder((4, 8), "float64", name=n) for n in "xy")
    gradients = gg.te_gradient(topi.tanh(topi.multiply(x, y)), [x, y])
    assert shared_stages(gradients) == []


def test_no_kernel_of_a_cotangent_has_a_loop_of_its_own():
    states, x, w = recurrence()
    kernels = gradient_kernels(kernel_of([x, w], [states]), 2, 1)
    assert kernels.shared
    for kernel in kernels.cotangents:
        assert kernel is not None
        assert ("shared", 0) in kernel.arguments
        assert "_step" not in kernel.func.script()
