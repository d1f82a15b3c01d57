"""Random programs: derived gradients against differences, and compiled against interpreted.

Many more are run by tests/fallback/fuzz.py, which also says what to look at when one fails here.
"""

from collections import Counter

import numpy as np
import pytest

from graphgrad.errors import ArgumentError
from tests.fallback import fuzz
from tests.fallback.choices import Choices, smallest
from tests.fallback.interpreter import evaluate
from tests.fallback.judge import INFINITE, JUMP, SMOOTH, with_heads
from tests.fallback.programs import random_program
from tests.fallback.source import source

BLOCK = 30
"""Programs of one test."""

NARROW_TOLERANCE = {"float32": 1e-4, "float16": 5e-2}


def outcomes(check, seeds):
    """Count what a check says of programs; the first that fails is shown in full."""
    counted = Counter()
    for seed in seeds:
        choices = Choices(seed)
        name, error = fuzz.outcome(check, choices)
        if error is not None:
            program = random_program(Choices(tape=choices.tape))
            pytest.fail(f"seed {seed}: {name}: {error}\n{source(program.outputs)}")
        counted[name] += 1
    return counted


@pytest.mark.parametrize("block", range(5))
def test_gradients_agree_with_differences(block):
    counted = outcomes(fuzz.check_first_order, range(BLOCK * block, BLOCK * (block + 1)))
    assert counted[SMOOTH] >= 0.9 * BLOCK, counted
    assert counted[JUMP] + counted[INFINITE] <= 2, counted


@pytest.mark.parametrize("first", [10_000, 10_010])
def test_gradients_of_gradients_agree_with_differences(first):
    counted = outcomes(fuzz.check_second_order, range(first, first + 10))
    assert counted[SMOOTH] >= 8, counted


@pytest.mark.parametrize(
    "first", [20_000, *(pytest.param(n, marks=pytest.mark.slow) for n in (20_012, 20_024))]
)
def test_compiled_gradients_are_the_interpreted_ones(first):
    counted = outcomes(fuzz.check_compiled, range(first, first + 12))
    assert counted == {fuzz.EQUAL: 12}


@pytest.mark.parametrize(
    "first", [30_040, *(pytest.param(n, marks=pytest.mark.slow) for n in (30_000, 30_020))]
)
def test_scheduled_gradients_are_the_interpreted_ones(first):
    """Every stage in vectors and threads, however small it is.

    Among those that are slow, 30_011 and 30_039 keep TVM's `CompactBufferAllocation` busy for up to
    two minutes.
    """
    counted = outcomes(fuzz.check_scheduled, range(first, first + 20))
    assert counted == {fuzz.EQUAL: 20}


@pytest.mark.parametrize("dtype", NARROW_TOLERANCE)
def test_narrow_floats_have_the_gradient_of_wide_ones(dtype):
    for seed in range(30_000, 30_020):
        narrow, wide = (_gradients(seed, dtype, of) for of in (dtype, "float64"))
        for given, expected in zip(narrow, wide, strict=True):
            assert given.dtype == dtype
            error = np.linalg.norm(given.astype("float64") - expected)
            assert error <= NARROW_TOLERANCE[dtype] * (np.linalg.norm(expected) + 0.1), seed


def _gradients(seed, rounded_to, dtype):
    """Return the gradients of a program in a dtype, at inputs that are exact in another."""
    choices = Choices(seed)
    random_program(choices, smooth=True)
    program = random_program(Choices(tape=choices.tape), dtype, smooth=True)
    heads, gradient = with_heads(program, np.random.default_rng(0))
    known = [*program.known, *heads]
    known = [
        (t, a.astype(rounded_to).astype(a.dtype) if a.dtype.kind not in "iu" else a)
        for t, a in known
    ]
    return evaluate(gradient.outputs, known)


def test_a_refusal_is_a_failure(monkeypatch, capsys):
    def refuse(choices):
        random_program(choices)
        raise ArgumentError("not this")

    monkeypatch.setattr(fuzz, "check_first_order", refuse)
    monkeypatch.setattr("sys.argv", ["fuzz", "--programs", "1", "--tries", "1"])
    assert fuzz.main() == 1
    assert "1  refused: not this" in capsys.readouterr().out


def test_programs_are_the_same_when_played_back():
    choices = Choices(7)
    program = random_program(choices)
    again = random_program(Choices(tape=choices.tape))
    assert source(program.outputs) == source(again.outputs)


def test_programs_have_all_kinds_of_index_maps_and_reductions():
    text = "\n".join(source(random_program(Choices(seed)).outputs) for seed in range(300))
    for part in ("%", "//", "Mod(", "Select(", "Max(", "Min(", "N[", "where (", "init", "let"):
        assert part in text, part
    for combiner in ("(a * b)", "-> Max(", "-> Min(", "(a_0 + b_0), (a_1 + b_1)", "Select((("):
        assert combiner in text, combiner


@pytest.mark.parametrize("tries, length", [(1000, 1), (1, 6)])
def test_smallest_leaves_out_what_a_failure_does_not_need(tries, length):
    found = smallest([0.1, 0.9, 0.2, 0.3, 0.4, 0.5], lambda tape: 0.9 in tape, tries)
    assert 0.9 in found and len(found) <= length
    assert tries == 1 or found == [0.9]
