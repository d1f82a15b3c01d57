"""Random kernels, scheduled at random too: what they are raised to computes the same.

Thousands more are run by tests/fallback/lift/fuzz.py.
"""

from collections import Counter
from functools import partial

import pytest

from tests.fallback import fuzz as programs
from tests.fallback.choices import Choices
from tests.fallback.lift.fuzz import EQUAL, SKIPPED, check
from tests.fallback.programs import random_program
from tests.fallback.source import source

BLOCK = 15
"""Kernels of one test."""


def outcomes(chosen, first):
    """Count what a check says of kernels; the first that is wrong is shown."""
    counted = Counter()
    for seed in range(first, first + BLOCK):
        choices = Choices(seed)
        name, error = programs.outcome(chosen, choices)
        if error is not None:
            text = source(random_program(Choices(tape=choices.tape)).outputs)
            pytest.fail(f"seed {seed}: {name}: {error}\n{text}")
        counted[name] += 1
    return counted


@pytest.mark.parametrize("first", [0, 15])
def test_kernels_of_random_programs(first):
    counted = outcomes(check, first)
    assert counted[EQUAL] >= BLOCK - 1, counted


@pytest.mark.parametrize("first", [1000, 1015])
def test_kernels_that_tvm_makes(first):
    counted = outcomes(partial(check, stock=True), first)
    assert counted[EQUAL] + counted[SKIPPED] == BLOCK, counted


@pytest.mark.parametrize("first", [1000, 1015, 1030])
def test_kernels_with_random_schedules(first):
    counted = outcomes(partial(check, tuned=True), first)
    assert counted[EQUAL] >= 0.8 * BLOCK, counted
