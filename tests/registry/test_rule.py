import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.registry import find, sample, unregister
from graphgrad.registry.rule import linear
from tests import unknown_ops
from tests.running import F64, function, run

OP = "graphgrad.test_erf"
"""An op that graphgrad has no rule for: users' rules are tried on it."""


@pytest.fixture(autouse=True)
def _no_rule_stays():
    yield
    if find(OP) is not None:
        unregister(OP)


def mod():
    return function(lambda builder, x: builder.emit(unknown_ops.erf(x)), ((2, 3), F64))


def test_user_rule_in_plain_relax():
    @gg.register_gradient(OP, samples=[sample((2, 3))])
    def erf(inputs, outputs, cotangents, attrs):
        """x̄ = ȳ · 2 exp(−x²) / √π"""
        (x,), (ct,) = inputs, cotangents
        slope = relax.op.exp(relax.op.negative(relax.op.multiply(x, x)))
        scale = relax.const(2 / np.sqrt(np.pi), F64)
        return [relax.op.multiply(ct, relax.op.multiply(scale, slope))]

    x = np.linspace(-1, 1, 6).reshape(2, 3)
    gradient = run(gg.vjp(mod()), "main_vjp", x, np.ones((2, 3)))[1]
    np.testing.assert_allclose(gradient, 2 * np.exp(-x * x) / np.sqrt(np.pi))
    assert find(OP).origin == "user"
    assert find(OP).formula.startswith("x̄ = ȳ")


def test_user_rule_goes_before_ours():
    @gg.register_gradient("relax.exp")
    def straight_through(inputs, outputs, cotangents, attrs):
        return cotangents

    try:
        exp = function(lambda builder, x: builder.emit(relax.op.exp(x)), ((2,), F64))
        assert (run(gg.vjp(exp), "main_vjp", np.ones(2), np.ones(2))[1] == 1).all()
    finally:
        unregister("relax.exp")


def test_declared_nondifferentiable_by_a_user():
    gg.nondifferentiable(OP)
    assert not run(gg.vjp(mod()), "main_vjp", np.ones((2, 3)), np.ones((2, 3)))[1].any()


def results(cotangents):
    (ct,) = cotangents
    return {
        "arity": ([ct, ct], "returned 2 cotangent.s. for 1 input"),
        "wrong shape": (
            [relax.op.permute_dims(ct)],
            r"shape \[3, 2\] for input 0 of shape \[2, 3\]",
        ),
        "dtype": ([relax.op.astype(ct, "int32")], "dtype int32 for input 0"),
        "type": (["x"], "returned str for input 0"),
    }


@pytest.mark.parametrize("case", ["arity", "wrong shape", "dtype", "type"])
def test_what_a_rule_returns_is_checked(case):
    messages = {}

    @gg.register_gradient(OP)
    def erf(inputs, outputs, cotangents, attrs):
        result, messages[case] = results(cotangents)[case]
        return result

    with pytest.raises(gg.RuleError) as caught:
        gg.vjp(mod())
    assert caught.match(messages[case])
    assert caught.match(r"test_rule\.py:\d+")


def test_scalar_result_is_refused_for_a_matrix():
    @gg.register_gradient(OP)
    def erf(inputs, outputs, cotangents, attrs):
        return [relax.op.sum(cotangents[0])]

    with pytest.raises(gg.RuleError, match=r"shape \[\] for input 0"):
        gg.vjp(mod())


def test_linear_rule_must_not_read_its_input():
    @linear(OP, samples=[])
    def erf(x, ct):
        return x * ct

    with pytest.raises(gg.RuleError, match="linear"):
        gg.vjp(mod())


def test_unknown_op_is_refused():
    with pytest.raises(gg.RuleError, match=r"no Relax op named 'relax\.erff'"):
        gg.register_gradient("relax.erff")(lambda inputs, outputs, cotangents, attrs: None)


def test_second_registration_is_refused():
    gg.register_gradient(OP)(lambda inputs, outputs, cotangents, attrs: None)
    with pytest.raises(gg.RuleError, match="has a rule already"):
        gg.register_gradient(OP)(lambda i, o, c, a: None)


def test_unregister_needs_a_rule():
    with pytest.raises(gg.RuleError, match="no rule of yours"):
        unregister(OP)


def test_a_relax_expression_may_be_an_operand():
    @gg.register_gradient(OP)
    def erf(inputs, outputs, cotangents, attrs):
        (x,), (ct,) = inputs, cotangents
        return [ct * (2 / np.pi**0.5) * relax.op.exp(-(x * x))]

    x = np.linspace(-1, 1, 6).reshape(2, 3)
    gradient = run(gg.vjp(mod()), "main_vjp", x, np.ones((2, 3)))[1]
    np.testing.assert_allclose(gradient, 2 * np.exp(-x * x) / np.sqrt(np.pi))
