"""Gradients derived from tensor expressions: of every op that has a rule, and of those without.

By differences in float64, a sample of each op. `pytest -m slow tests/registry/test_derived.py`
compares all samples with the rules, to second order.
"""

from collections import defaultdict
from functools import cache

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.check import RuleChecker, sample_inputs, sample_module
from graphgrad.check.machine import Machine
from graphgrad.registry import all_rules
from tests.labels import label
from tests.registry.derived_ops import derived_cases

RULES = [rule for rule in all_rules() if rule.function is not None and rule.origin == "hand"]
FIRST = [(rule, rule.samples[0]) for rule in RULES]
OF_FAMILY = defaultdict(list)
for _case in FIRST:
    OF_FAMILY[_case[0].function.__module__].append(_case)

DERIVED = derived_cases()

TWICE = {
    "relax.cumprod",
    "relax.max",
    "relax.nn.softmax",
    "relax.scatter_elements",
    "relax.take",
}
"""Ops whose derived gradient is derived again in every run of the tests."""


@cache
def checker(family):
    """The first samples of the ops of a family, compiled together."""
    return RuleChecker(OF_FAMILY[family], order=1, rules="derived")


@pytest.mark.parametrize(("rule", "sample"), FIRST, ids=label)
def test_derived_gradient(rule, sample):
    family = rule.function.__module__
    checker(family).check(OF_FAMILY[family].index((rule, sample)))


@pytest.mark.parametrize(
    ("rule", "sample"), [case for case in FIRST if case[0].op in TWICE], ids=label
)
def test_derived_gradient_of_a_derived_gradient(rule, sample):
    assert sample.second_order
    RuleChecker([(rule, sample)], order=2, rules="derived").check(0)


@cache
def derived_checker(order):
    """The samples of all ops without a rule, compiled together."""
    return RuleChecker(DERIVED, order=order)


@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("rule", "sample"), DERIVED, ids=label)
def test_op_without_a_rule(rule, sample, order):
    derived_checker(order).check(DERIVED.index((rule, sample)))


def test_scale_of_dequantized_integers():
    """TVM has no such op in float64."""
    x = relax.Var("x", relax.TensorType((2, 3), "int8"))
    scale = relax.Var("scale", relax.TensorType((3,), "float32"))
    zero = np.array([1, 0, -2], "int8")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, scale]):
        value = relax.op.dequantize(x, scale, relax.const(zero), axis=1)
        builder.emit_func_output(builder.emit(value))
    machine = Machine(gg.vjp(builder.get(), wrt=["scale"]))
    values = np.array([[3, -4, 5], [6, 7, -8]], "int8")
    ct = np.array([[1, 2, 3], [4, 5, 6]], "float32")
    (gradient,) = machine.gradients("main", [values, np.ones(3, "float32")], [ct])
    expected = (ct * (values.astype("float32") - zero)).sum(0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def compiled(rule, rules):
    """Return all samples of an op with their gradients and the gradients of these, compiled."""
    mod = tvm.IRModule()
    for index, sample in enumerate(rule.samples):
        name = f"case{index}"
        mod.update(sample_module(rule.op, sample, name))
        mod = gg.vjp(mod, name, rules=rules)
        if sample.second_order:
            mod = gg.vjp(mod, f"{name}_vjp", rules=rules)
    return Machine(mod)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=label)
def test_derived_gradients_are_those_of_the_rule(rule, record_property):
    hand, derived = compiled(rule, "auto"), compiled(rule, "derived")
    for index, sample in enumerate(rule.samples):
        generator = np.random.default_rng(index)
        inputs, name = sample_inputs(sample, generator), f"case{index}"
        for _ in range(1 + sample.second_order):
            outputs = hand.run(name, inputs)
            cotangents = [generator.uniform(-1, 1, y.shape).astype(y.dtype) for y in outputs]
            expected = hand.gradients(name, inputs, cotangents)
            given = derived.gradients(name, inputs, cotangents)
            largest = max(np.linalg.norm(gradient) for gradient in expected)
            for a, b in zip(expected, given, strict=True):
                scale = max(np.linalg.norm(a), 1e-3 * largest, 1e-9)
                assert a.dtype == b.dtype and np.linalg.norm(a - b) <= 1e-9 * scale, sample
            inputs, name = [*inputs, *cotangents], f"{name}_vjp"
    record_property("op", rule.op)
    record_property("compared", ["derived"] * len(rule.samples))
