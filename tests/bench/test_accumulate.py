import json

import pytest

from tests.peers import peer


@pytest.fixture
def accumulate():
    peer("psutil")
    import accumulate

    return accumulate


def test_both_forms_of_a_layer(accumulate):
    program = accumulate.layer(*accumulate.LAYERS["bias 4096"])
    rules = accumulate.Rules(count=1, max_load=1e9, attempts=1, seconds=1, pause=0)
    figures = accumulate.measured(program, rules, turn_seconds=0)
    add, write = figures["add"], figures["write, then sum"]
    assert write["allocated_bytes"] - add["allocated_bytes"] == 4 * 4096
    assert add["ms"] > 0 and write["quiet_turns"] == 1
    step = {"predicted_mb": 1.0, "measured_mb": 1.1}
    text = accumulate.told({"programs": {"bias": figures}, "step": {"donated": step}})
    assert "bias, write, then sum" in text and "step, donated" in text


def test_steps_of_both_forms(accumulate, monkeypatch):
    """The processes are stand-ins: what counts is which run is taken, and what is told of it."""
    peaks = {"donated": iter((3.0, 1.0, 2.0)), "copied": iter((None,) * 3)}

    class Process:
        returncode = 0

        def __init__(self, form):
            self.form = form

        def communicate(self):
            told = {"predicted_mb": 4.0, "measured_mb": next(peaks[self.form])}
            return json.dumps(told), None

    monkeypatch.setattr(accumulate, "_started", lambda form, small: Process(form))
    found = accumulate.measured_steps(True, repeats=3)
    assert found["donated"]["measured_mb"] == 2 and found["copied"]["measured_mb"] is None
    assert found["donated"]["measured_to_predicted"] == 0.5
    Process.returncode = 1
    peaks["donated"] = iter((1.0,))
    with pytest.raises(SystemExit, match="donated failed"):
        accumulate.measured_steps(True, repeats=1)


@pytest.mark.slow
def test_a_step_of_a_small_network(bench):
    found = json.loads(bench("accumulate_step.py", "donated", "--small"))
    assert found["predicted_mb"] > 0 and found["argument_bytes"] > 0
