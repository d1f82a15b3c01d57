"""Rules of users for loops: by the name of the loop, in terms of what `gg.scan` returns."""

import numpy as np
import pytest
from tvm import relax, tirx

import graphgrad as gg
from graphgrad.ops import functional as op
from graphgrad.registry import unregister
from graphgrad.registry.rule import elementwise
from tests.differences import assert_gradients
from tests.running import F64, function, run

NAME = "leaky"
GENERATOR = np.random.default_rng(0)


@pytest.fixture
def registered():
    def register(rule):
        gg.register_gradient(NAME)(rule)

    yield register
    unregister(NAME)


def leaky(builder, x, a, h, *, returned="both"):
    """hₜ = xₜ + a ⊙ hₜ₋₁"""

    def step(h, x):
        h = builder.emit(relax.op.add(x, relax.op.multiply(a, h)))
        return h, relax.op.multiply(h, h) if returned == "squares" else h

    last, all_steps = gg.scan(step, h, x, name=NAME)
    results = {"last": [last], "steps": [all_steps]}.get(returned, [last, all_steps])
    return builder.emit(relax.Tuple(results))


def rule(inputs, outputs, cotangents, attrs):
    """ḡₜ = ȳₜ + a ḡₜ₊₁,  x̄ = ḡ,  ā = Σₜ ḡₜ hₜ₋₁"""
    (first, _, a), (h,), (ct,) = inputs, outputs, cotangents
    last, g = gg.scan(lambda g, c: (a * (c + g), c + g), first * 0.0, op.flip(ct, 0))
    rows = op.strided_slice(h, [0], [0], [h.shape[0] - 1], assume_inbound=True)
    before = op.concat([op.expand_dims(first, 0), rows], 0)
    g = op.flip(g, 0)
    return [last, g, op.reduce_sum(g * before, [0])]


def of_squares(inputs, outputs, cotangents, attrs):
    """The same where the loop returns the squares of its states."""
    (h, squares), (ct_h, ct_squares) = outputs, cotangents
    assert h.shape == squares.shape
    return rule(inputs, [h], [ct_h + 2.0 * h * ct_squares], attrs)


def module(returned="both", steps=5):
    def build(builder, *params):
        return leaky(builder, *params, returned=returned)

    return function(build, ((steps, 3), F64), ((3,), F64), ((3,), F64))


def arrays(steps=5):
    return [GENERATOR.uniform(-1, 1, shape) for shape in ((steps, 3), (3,), (3,))]


@pytest.mark.parametrize("returned", ["both", "last", "steps", "squares"])
@pytest.mark.parametrize("steps", [5, 1])
def test_a_rule_sees_what_the_loop_returns(returned, steps, registered):
    registered(of_squares if returned == "squares" else rule)
    mod = module(returned, steps)
    (row,) = [row for row in gg.coverage(mod).rows if NAME in row.op]
    assert row.provenance == "user"
    assert_gradients(mod, *arrays(steps))


def test_a_symbolic_number_of_steps(registered):
    registered(rule)
    assert_gradients(module(steps=tirx.Var("t", "int64")), *arrays())


def test_it_is_checked_to_order_two_and_timed(registered):
    registered(rule)
    result = gg.check_grads(module(), order=2)
    part = next(part for part in result.parts if NAME in part.op)
    assert part.rule.endswith(f"test_loop_rules.py:{rule.__code__.co_firstlineno}")
    assert part.speed.rule > 0
    assert part.speed.derived > 0


def test_two_loops_of_one_name_and_other_shapes(registered):
    registered(lambda inputs, outputs, cotangents, attrs: [c * 0.0 + 7.0 for c in inputs])

    def build(builder, x, a, h, y, b, k):
        rows = [leaky(builder, x, a, h), leaky(builder, y, b, k)]
        return builder.emit(relax.Tuple([builder.emit(relax.TupleGetItem(row, 1)) for row in rows]))

    shapes = [(5, 3), (3,), (3,), (4, 2), (2,), (2,)]
    mod = function(build, *((shape, F64) for shape in shapes))
    given = [np.ones(shape) for shape in [*shapes, (5, 3), (4, 2)]]
    results = run(gg.vjp(mod), "main_vjp", *given)
    assert all((gradient == 7).all() for gradient in results[2:])


def too_few(inputs, outputs, cotangents, attrs):
    return [cotangents[0]]


def of_all_rows(inputs, outputs, cotangents, attrs):
    """A cotangent with a row for the first carry, which no input has."""
    ct = op.concat([op.expand_dims(inputs[0], 0), cotangents[0]], 0)
    return [inputs[0], ct, inputs[2]]


def of_integers(inputs, outputs, cotangents, attrs):
    return [inputs[0].astype("int32"), *inputs[1:]]


def of_a_column(inputs, outputs, cotangents, attrs):
    return [op.reshape(inputs[0], (3, 1)), *inputs[1:]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (of_a_column, r"shape \[3, 1\] for input 0 of shape \[3\]"),
        (too_few, r"returned 1 cotangent\(s\) for 3 input"),
        (of_all_rows, r"shape \[6, 3\] for input 1 of shape \[5, 3\]"),
        (of_integers, "dtype int32 for input 0"),
    ],
)
def test_a_wrong_rule_is_named(wrong, message, registered):
    registered(wrong)
    line = wrong.__code__.co_firstlineno
    with pytest.raises(gg.RuleError, match=rf"test_loop_rules\.py:{line}: .*{NAME} .*{message}"):
        gg.vjp(module("steps"))


def test_a_mismatch_names_the_rule(registered):
    def forgets_the_past(inputs, outputs, cotangents, attrs):
        return [inputs[0] * 0.0, cotangents[0], inputs[2] * 0.0]

    registered(forgets_the_past)
    line = forgets_the_past.__code__.co_firstlineno
    with pytest.raises(
        gg.GradientMismatch, match=rf"by the rule at .*loop_rules\.py:{line}, order 1"
    ):
        gg.check_grads(module())


def test_only_the_general_form_is_served():
    elementwise(NAME, samples=[])(lambda *values: values)
    try:
        with pytest.raises(gg.RuleError, match=rf"the loop {NAME} is elementwise; register"):
            gg.vjp(module())
    finally:
        unregister(NAME)


def test_a_loop_declared_not_differentiable():
    gg.nondifferentiable(NAME)
    try:
        *_, gradient = run(gg.vjp(module("last"), wrt="x0"), "main_vjp", *arrays(), np.ones(3))
        assert not gradient.any()
    finally:
        unregister(NAME)


@pytest.mark.parametrize("name", ["", 5])
def test_what_is_no_name(name):
    def build(builder, x):
        return gg.scan(lambda h, row: (h, row), x, x, name=name)[1]

    with pytest.raises(gg.ArgumentError, match="is no name for a loop"):
        function(build, ((2, 3), F64))
