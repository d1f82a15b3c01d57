import math
import time

import pytest
from rounds import Rules, Turn, take_rounds


def play(loads, *, count=2, attempts=5, seconds=100.0, until=math.inf):
    """Let contenders play turns of one second with given loads; None stands for a failure."""
    remaining = {name: iter(each) for name, each in loads.items()}
    order = []

    def take(name):
        order.append(name)
        load = next(remaining[name])
        return None if load is None else Turn([1.0, 2.0, 1.5], load)

    rules = Rules(count, 0.1, attempts, seconds, pause=0.0, until=until)
    return take_rounds(loads, take, rules), order


def test_contenders_alternate_and_the_first_changes():
    _, order = play({"a": [0, 0], "b": [0, 0], "c": [0, 0]})
    assert order == ["a", "b", "c", "b", "c", "a"]


def test_a_loaded_turn_is_taken_again():
    records, order = play({"a": [0, 0.9, 0.05], "b": [0, 0]})
    assert order.count("a") == 3 and order.count("b") == 2
    assert [turn.load for turn in records["a"].counted] == [0, 0.05]


def test_attempts_are_capped_and_loaded_turns_count_only_where_none_was_quiet():
    records, _ = play({"a": [0.5] * 9, "b": [0.5, 0, 0.5, 0.5]}, attempts=4)
    assert not records["a"].quiet and len(records["a"].counted) == 4
    assert [turn.load for turn in records["b"].counted] == [0]


def test_a_slow_contender_stops_when_its_time_is_used_up():
    _, order = play({"a": [0] * 9}, count=9, attempts=9, seconds=9.0)
    assert len(order) == 2


def test_a_failed_contender_takes_no_further_turn():
    records, order = play({"a": [0, None], "b": [0, 0]})
    assert list(records) == ["b"] and order.count("a") == 2 and order.count("b") == 2


def test_median_is_over_turns():
    turns = iter([Turn([1.0], 0), Turn([9.0, 5.0, 2.0], 0), Turn([3.0], 0)])
    records = take_rounds(["a"], lambda name: next(turns), Rules(3, 0.1, 3, 100.0, 0.0))
    assert records["a"].median_seconds() == pytest.approx(3.0)


def test_nobody_takes_a_turn_after_the_end():
    records, order = play({"a": [0, 0], "b": [0, 0]}, until=time.monotonic())
    assert not order and not any(record.turns for record in records.values())
