"""Every sample of every rule, against finite differences in float64, to order two."""

import pytest

from graphgrad.registry import all_rules
from tests.labels import label
from tests.registry.checkers import OF_RULE, checker

CASES = [(rule, sample) for rule in all_rules() for sample in rule.samples]


@pytest.mark.parametrize(("rule", "sample"), CASES, ids=label)
def test_rule(rule, sample, record_property):
    checker(rule.op).check(OF_RULE[rule.op].index((rule, sample)))
    record_property("op", rule.op)
    record_property("compared", ["order1", "order2"] if sample.second_order else ["order1"])


@pytest.mark.parametrize("rule", [r for r in all_rules() if r.function is not None], ids=label)
def test_rule_has_samples_and_formula(rule):
    assert rule.samples, f"{rule.location}: a rule carries its samples"
    assert rule.formula, f"{rule.location}: the first line of a rule's docstring is its formula"
