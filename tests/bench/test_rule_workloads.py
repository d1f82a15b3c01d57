"""The calls by which derived gradients are timed beside those by hand."""

from rule_workloads import WORKLOADS

from graphgrad.registry import all_rules


def test_every_op_that_has_a_rule_is_called():
    called = {op for op, _ in WORKLOADS.values()}
    ruled = {rule.op for rule in all_rules() if rule.origin == "hand" and rule.function}
    assert ruled <= called
