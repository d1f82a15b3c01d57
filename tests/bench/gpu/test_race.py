"""Races with processes that only pretend."""

from types import SimpleNamespace

import pytest
from process import ContenderError

OURS, EAGER, HALF = "graphgrad fp32", "torch eager fp32", "torch eager bf16"


class Process:
    """A contender whose loss, or error, is given by name; its steps take that many ms."""

    losses: dict

    def __init__(self, name, command, environment, limit):
        self.name, self.memory = name, None
        if isinstance(self.losses[name], str):
            raise ContenderError(self.losses[name])
        loss = self.losses[name]
        self.facts = {"initial_loss": loss, "includes": "all", "first_step_seconds": 1.0}

    def run(self, timed, untimed=0):
        return [1e-3 * self.losses[self.name]] * timed

    def ask(self, request):
        return {"calls": [["kernel", 3e-6], ["gg.lib.cudnn", 5e-6], ["kernel", 3e-6]]}

    def close(self):
        pass


@pytest.fixture
def raced(monkeypatch):
    """Race; return the last line of each contender."""
    import race

    def run(losses, seconds=60.0, failed=(), device="cuda", predicted=None, torch=True):
        monkeypatch.setattr(race, "Stepping", Process)
        monkeypatch.setattr(race, "has_torch", lambda: torch)
        Process.losses = losses
        about = {"failed": dict.fromkeys(failed, "no")}
        kit = SimpleNamespace(about=about, device=device, calls=lambda name: predicted)
        settings = race.Settings(2, 0.01, 10.0, race.time.monotonic() + seconds)
        lines = {}
        started = race.Race(kit, "net", settings, lambda line: lines.update({line.by: line}))
        started.run(list(losses))
        return lines

    return run


def test_times_are_medians(raced):
    lines = raced({OURS: 2.0, EAGER: 2.00001})
    assert [line.status for line in lines.values()] == ["measured"] * 2
    assert lines[OURS].figures["step_ms"] == pytest.approx(2.0)
    assert lines[OURS].figures["steps_per_turn"] == 5


def test_calls_are_compared_with_their_prediction(raced):
    kernel = {"name": "kernel", "seconds": 2e-6, "is_of_library": False}
    library = {"name": "cuDNN matmul", "seconds": 4.5e-6, "is_of_library": True}
    lines = raced({OURS: 2.0, EAGER: 2.0}, predicted=[kernel, library, kernel])
    figures = lines[OURS].figures
    assert figures["predicted_ms"] == pytest.approx(8.5e-3)
    assert [row["name"] for row in figures["furthest"]] == ["kernel", "cuDNN matmul"]
    first = figures["furthest"][0]
    assert (first["calls"], first["measured_ms"]) == (2, pytest.approx(6e-3))
    assert "furthest" not in lines[EAGER].figures


def test_calls_that_were_not_predicted_cost_the_comparison_alone(raced):
    kernel = {"name": "another", "seconds": 2e-6, "is_of_library": False}
    line = raced({OURS: 2.0}, predicted=[kernel])[OURS]
    assert line.status == "measured" and "other calls" in line.reason and not line.is_bad
    assert line.figures["step_ms"] == pytest.approx(2.0) and "furthest" not in line.figures


def test_what_was_measured_stays_where_time_runs_out(raced, monkeypatch):
    """The second contender is still compiling then."""
    import race

    now = [0.0]
    monkeypatch.setattr(race, "time", SimpleNamespace(monotonic=lambda: now[0]))
    start = Process.__init__

    def slow(self, name, *given):
        if name == EAGER:
            now[0] = 1e9
            raise ContenderError("no answer")
        start(self, name, *given)

    monkeypatch.setattr(Process, "__init__", slow)
    lines = raced({OURS: 2.0, EAGER: 2.0})
    assert lines[OURS].status == "measured" and len(lines[OURS].figures["turns_ms"]) == 1
    assert lines[EAGER].reason == "no time was left"


def test_torch_is_not_started_where_there_is_none(raced):
    lines = raced({OURS: 2.0, EAGER: 2.0}, torch=False)
    assert lines[OURS].status == "measured" and len(lines[OURS].figures["turns_ms"]) == 2
    assert (lines[EAGER].status, lines[EAGER].reason) == ("not run", "torch is not installed")


@pytest.mark.parametrize(
    "by, loss, status",
    [(EAGER, 2.001, "FAILED"), (HALF, 2.01, "measured"), (HALF, 2.1, "FAILED")],
    ids=["fp32", "bf16", "bf16 too far"],
)
def test_initial_losses_must_agree(raced, by, loss, status):
    line = raced({OURS: 2.0, by: loss})[by]
    assert line.status == status and line.is_bad == (status == "FAILED")


@pytest.mark.parametrize(
    "by, error, status, bad",
    [
        (OURS, "MachineError: a step needs more memory than is free", "out of memory", False),
        (OURS, "the process ended with status -11", "BROKEN", True),
        (EAGER, "torch.OutOfMemoryError: no", "out of memory", False),
        (EAGER, "InductorError: no triton", "BROKEN", False),
    ],
    ids=["our memory", "our crash", "torch's memory", "torch's crash"],
)
def test_who_fails_is_told_and_the_others_race(raced, by, error, status, bad):
    other = EAGER if by == OURS else OURS
    lines = raced({by: error, other: 2.0})
    assert (lines[by].status, lines[by].reason, lines[by].is_bad) == (status, error, bad)
    assert lines[other].status == "measured"


def test_what_cannot_start(raced):
    losses = {OURS: 2.0, "graphgrad tf32": 2.0, EAGER: 2.0}
    assert raced(losses)["graphgrad tf32"].status == "measured"
    assert "not packed for a cpu" in raced(losses, device="cpu")["graphgrad tf32"].reason
    lines = raced(losses, failed=["net.fp32"])
    assert (lines[OURS].status, lines[EAGER].status) == ("BROKEN", "measured")
    assert {line.reason for line in raced(losses, seconds=-1.0).values()} == {"no time was left"}
