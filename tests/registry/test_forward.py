"""Forward mode of every rule: tangents agree with differences and with the rule's gradients."""

import pytest

from graphgrad.check import RuleChecker
from tests.registry.checkers import OF_RULE

FEW = 2
"""Samples of each rule that are checked; `graphgrad.check_grads` with ``modes`` takes all."""


@pytest.mark.parametrize("op", [op for op, cases in OF_RULE.items() if cases])
def test_tangents(op):
    cases = OF_RULE[op]
    # The first is an ordinary call, and the last is often the one with the most attributes.
    chosen = cases if len(cases) <= FEW else [cases[0], *cases[-(FEW - 1) :]]
    checker = RuleChecker(chosen, order=1, modes=("fwd", "rev"))
    for index in range(len(chosen)):
        checker.check(index)
