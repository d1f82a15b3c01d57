import pytest

import graphgrad as gg
from graphgrad.runtime import threads


def test_bad_numbers_are_errors_of_ours():
    with pytest.raises(gg.ArgumentError, match="threads=0 must be None or a whole number from 1"):
        gg.set_threads(0)


def test_the_choice_is_that_of_steps_and_targets(monkeypatch):
    chosen = []
    monkeypatch.setattr(threads, "set_threads", chosen.append)
    gg.set_threads(3)
    assert chosen == [3]
