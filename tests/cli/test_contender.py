"""Processes that step in turns."""

import os
import signal

import pytest

from graphgrad.cli.contender import Contender, ContenderError, take_turns


def counting(first):
    state = [first]

    def step():
        state[0] += 1.0
        return state[0]

    return step


def failing():
    raise ValueError("it has no weights")


def dying(steps):
    left = [steps]

    def step():
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0

    return step


def state_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_turns_of_one_that_lasts_and_of_one_that_dies():
    contenders = {}
    try:
        contenders["lasts"] = Contender(counting, (3.0,))
        contenders["dies"] = Contender(dying, (3,))
        assert contenders["lasts"].loss == 4.0 and contenders["lasts"].first_step > 0
        results = take_turns(contenders, 3, 0.0)
        assert state_of(contenders["lasts"]._process.pid) == "T"
    finally:
        for contender in contenders.values():
            contender.close()
    assert results["lasts"] > 0
    assert isinstance(results["dies"], ContenderError) and "status -9" in str(results["dies"])


def test_one_that_does_not_start_says_why():
    with pytest.raises(ContenderError, match="ValueError: it has no weights"):
        Contender(failing, ())
