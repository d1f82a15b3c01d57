from types import SimpleNamespace

import pytest

from tests.peers import peer


@pytest.fixture
def field(monkeypatch):
    peer("psutil")
    import field

    meter = SimpleNamespace(foreign_cores=lambda: 0.0)
    monkeypatch.setattr(field, "LoadMeter", lambda pid: meter)
    return field


def pace(field, turn_seconds=1.0, most_steps=100):
    from rounds import Rules

    rules = Rules(count=2, max_load=0.1, attempts=6, seconds=60.0, pause=0.0)
    return field.Pace(rules, turn_seconds, most_steps)


class Runner:
    """A contender whose steps take a given time, and which fails in a given request."""

    pid = 0

    def __init__(self, seconds, fails_in=None):
        self.seconds, self.fails_in = seconds, fails_in
        self.requests, self.closed = [], False

    def run(self, timed, untimed=0):
        from process import ContenderError

        self.requests.append((timed, untimed))
        if len(self.requests) == self.fails_in:
            raise ContenderError("it died")
        return [self.seconds] * timed

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    "seconds, most_steps, warm_up, turn",
    [
        (0.1, 100, [(1, 0), (5, 0)], (10, 1)),
        (0.001, 100, [(1, 0), (5, 0)], (100, 1)),  # not more than the most
        (2.0, 100, [(1, 0)], (1, 0)),  # a long step alone fills a turn
    ],
)
def test_steps_fill_a_turn(field, seconds, most_steps, warm_up, turn):
    runner, told = Runner(seconds), []
    competing = field.Field(pace(field, most_steps=most_steps), lambda *given: told.append(given))
    competing.enter("one", lambda: runner)
    record = competing.compete()["one"]
    assert runner.requests == [*warm_up, turn, turn]
    assert record.median_seconds() == seconds
    assert [name for name, _ in told] == ["one", "one"]


@pytest.mark.parametrize("fails_in", [1, 3, 4])
def test_who_fails_is_out_and_the_others_go_on(field, fails_in):
    good, bad = Runner(0.5), Runner(0.5, fails_in)
    competing = field.Field(pace(field))
    competing.enter("good", lambda: good)
    competing.enter("bad", lambda: bad)
    records = competing.compete()
    assert set(records) == {"good"} and len(records["good"].turns) == 2
    assert competing.errors == {"bad": "it died"} and bad.closed and not good.closed
    competing.close()
    assert good.closed


def test_who_does_not_start_is_an_error(field):
    from process import ContenderError

    def start():
        raise ContenderError("no compiler")

    competing = field.Field(pace(field))
    competing.enter("one", start)
    assert competing.errors == {"one": "no compiler"} and competing.compete() == {}
