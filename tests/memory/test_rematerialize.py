"""Schedules compute what the program does, in memory that is not overwritten too early."""

from collections import Counter

import pytest

from graphgrad.memory import rematerialize
from graphgrad.memory.rematerialize import Program, Step
from tests.memory.line_programs import computed, training


def chain(layers=16, size=1024, seconds=1.0):
    """A chain of equal layers whose gradients each read one of its values."""
    sizes = [size] * (2 * layers + 1)
    steps = [
        Step((k - 1,) if k else (), (k,), seconds if k % 4 else 10 * seconds, True)
        for k in range(layers)
    ]
    steps += [
        Step((layers + k - 1, layers - 1 - k) if k else (layers - 1,), (layers + k,), seconds, True)
        for k in range(layers)
    ]
    return Program.of(sizes, steps)


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_schedules_compute_the_same(seed, repeats):
    program = Program.of(*training(seed))
    schedules = program.schedules(repeats)
    expected = computed(program.whole)
    assert len(schedules) > 4
    for schedule in schedules:
        assert computed(schedule) == expected
        assert schedule.block_bytes >= schedule.least_bytes
        again = Counter(schedule.step_of)
        assert max(again.values()) <= 2**repeats
        repeated = [step for step, count in again.items() if count > 1]
        assert all(program.steps[step].is_pure and step <= program.turn for step in repeated)


def test_memory_of_a_chain_falls_to_segments():
    program = chain(layers=64)
    whole = program.whole.least_bytes
    schedules = program.schedules()
    assert schedules[0] is program.whole
    # √64 values at the ends of segments, one segment, and two cotangents.
    assert min(schedule.least_bytes for schedule in schedules) <= (8 + 8 + 4) / 64 * whole
    forward = sum(step.seconds for step in program.steps[:64])
    assert all(schedule.seconds < forward for schedule in schedules)
    again = min(program.schedules(2), key=lambda schedule: schedule.least_bytes)
    assert again.least_bytes <= min(schedule.least_bytes for schedule in schedules)
    assert program.schedules(0) == [program.whole]


def test_results_that_take_long_are_held():
    program = chain(layers=32)
    half = next(s for s in program.schedules() if s.least_bytes <= 24 / 32 * 33 * 1024)
    assert all(count == 1 or step % 4 for step, count in Counter(half.step_of).items())


def test_what_is_overwritten_is_not_repeated_from():
    """Step 0 reads a parameter that step 2 overwrites, before step 3 reads the result."""
    steps = [
        Step((0,), (1,), 1.0, True),
        Step((1,), (2,), 1.0, True),
        Step((0, 2), (0,), 1.0, False),
        Step((1,), (3,), 1.0, True),
    ]
    program = Program.of([0, 256, 4096, 256], steps)
    assert program.limit == [2, 4, 0, 4]
    assert program.schedule(1, {0}) is None
    assert program.schedule(1, {1}) is not None


@pytest.mark.parametrize("seed", range(8))
def test_frugal_schedules_compute_the_same(seed, monkeypatch):
    monkeypatch.setattr(rematerialize, "_NO_TIME", 0.2)
    program = Program.of(*training(seed))
    schedule = program.frugal()
    assert computed(schedule) == computed(program.whole)
    assert schedule.least_bytes <= program.whole.least_bytes
    assert schedule.seconds <= 0.2 * sum(step.seconds for step in program.steps)


def layers(count=8):
    """Products, each followed by a map of its result; the backward pass reads both."""
    sizes, steps = [4096] * (3 * count), []
    for k in range(count):
        steps.append(Step((2 * k - 1,) if k else (), (2 * k,), 1.0, True))
        steps.append(Step((2 * k,), (2 * k + 1,), 0.01, True))
    for k in reversed(range(count)):
        above = (2 * count + k + 1,) if k < count - 1 else ()
        steps.append(Step((*above, 2 * k, 2 * k + 1), (2 * count + k,), 1.0, True))
    return Program.of(sizes, steps)


def test_what_takes_next_to_no_time_is_repeated_and_nothing_else():
    program = layers()
    schedule = program.frugal()
    repeated = [step for step, count in Counter(schedule.step_of).items() if count > 1]
    assert repeated and all(program.steps[step].seconds == 0.01 for step in repeated)
    assert schedule.least_bytes <= 0.75 * program.whole.least_bytes


def test_an_empty_program():
    program = Program.of([], [])
    assert [schedule.block_bytes for schedule in program.schedules()] == [0]
    assert program.frugal() is program.whole
