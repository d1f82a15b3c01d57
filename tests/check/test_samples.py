"""The check of rules on their samples can fail: every kind of wrong rule is caught."""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.check import RuleChecker
from graphgrad.ops import functional as op
from graphgrad.registry import find, sample, static, tensor, unregister
from graphgrad.registry.rule import bilinear, elementwise, linear

ERF = "relax.erf"
"""An op without a rule of graphgrad's."""

SLOPE = 2 / np.sqrt(np.pi)


def check(name, *samples, order=2):
    """Check the registered rule of an op on samples."""
    rule = find(name)
    checker = RuleChecker([(rule, s) for s in samples], order=order)
    for index in range(len(samples)):
        checker.check(index)


@pytest.fixture
def erf():
    """Register dy/dx of erf, as given, until the test ends."""

    def register(partial):
        elementwise(ERF, samples=[])(lambda x, y: partial(x))

    yield register
    unregister(ERF)


def slope(x):
    return SLOPE * op.exp(-(x * x))


def first_element_wrong(x):
    first = relax.const(np.eye(1, 6).reshape(2, 3), "float64")
    return slope(x) * (1.0 + 1e-3 * x.emitter.lift(first))


def test_right_rule_passes(erf):
    erf(slope)
    check(ERF, sample((2, 3)), sample(("n", 3)), sample(()))


@pytest.mark.parametrize(
    "partial",
    [
        lambda x: -slope(x),
        lambda x: 2.0 * slope(x),
        lambda x: (1 + 1e-6) * slope(x),
        lambda x: slope(x) + 1e-6,
        lambda x: x.emitter.full(0.0, x.shape, x.dtype),
        lambda x: slope(x) / op.greater(x, 2.0).astype(x.dtype),
        first_element_wrong,
    ],
    ids=["sign", "factor 2", "factor", "term", "zero", "infinite", "one element"],
)
def test_wrong_partial_derivative_is_caught(erf, partial):
    erf(partial)
    with pytest.raises(gg.GradientMismatch, match=r"relax\.erf.*order 1.*input 0"):
        check(ERF, sample((2, 3)))


def test_rule_that_is_wrong_only_at_order_two_is_caught(erf):
    def frozen(x):
        """Return the slope; but rounded to 1e-12, which has no derivative."""
        return x.emitter.emit(relax.op.round((slope(x) * 1e12).expr)) / 1e12

    erf(frozen)
    check(ERF, sample((2, 3)), order=1)
    with pytest.raises(gg.GradientMismatch, match="order 2"):
        check(ERF, sample((2, 3)))


def test_missing_transposition_is_caught():
    @bilinear("relax.matmul", samples=[])
    def matmul(a, b, ct):
        return ct @ b, op.transpose(a) @ ct

    try:
        with pytest.raises(gg.GradientMismatch, match="input 0"):
            check("relax.matmul", sample((3, 3), (3, 3)))
    finally:
        unregister("relax.matmul")


@pytest.mark.parametrize(
    ("name", "rule", "case"),
    [
        ("relax.sum", lambda x, ct: op.broadcast_to(ct, x.shape) * 0.5, sample((2, 3))),
        ("relax.permute_dims", lambda x, ct: op.reshape(ct, x.shape), sample((2, 3))),
        (
            "relax.reshape",
            lambda x, shape, ct: (op.transpose(op.reshape(ct, (3, 2))), None),
            sample((2, 3), static((6,))),
        ),
        ("relax.full_like", lambda x, fill, ct: (None, None), sample((2, 3), tensor(()))),
    ],
    ids=["factor", "order of axes", "order of elements", "absent cotangent"],
)
def test_wrong_linear_rule_is_caught(name, rule, case):
    linear(name, samples=[])(rule)
    try:
        with pytest.raises(gg.GradientMismatch, match=name):
            check(name, case, order=1)
    finally:
        unregister(name)


def shorter(x):
    return op.reshape(x, [3, 2])


@pytest.mark.parametrize("partial", [lambda x: op.greater(x, 0.0), shorter], ids=["dtype", "shape"])
def test_partial_derivative_of_another_type_is_refused(erf, partial):
    erf(partial)
    with pytest.raises((gg.GraphGradError, ValueError)):
        check(ERF, sample((2, 3)))
