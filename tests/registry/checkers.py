"""The samples of rules, compiled once for all tests of a process that look at them."""

from collections import defaultdict
from functools import cache

from graphgrad.check import RuleChecker
from graphgrad.registry import all_rules

OF_RULE = defaultdict(list)
for _rule in all_rules():
    OF_RULE[_rule.op] += [(_rule, sample) for sample in _rule.samples]


@cache
def checker(op):
    """All samples of an op with derivatives to second order, compiled together."""
    return RuleChecker(OF_RULE[op], order=2)
