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
    figures = accumulate.measured(program, rules, calls=1)
    add, write = figures["add"], figures["write, then sum"]
    assert write["allocated_bytes"] - add["allocated_bytes"] == 4 * 4096
    assert add["ms"] > 0 and write["quiet_turns"] == 1
    step = {"predicted_mb": 1.0, "measured_mb": 1.1}
    text = accumulate.told({"programs": {"bias": figures}, "step": {"donated": step}})
    assert "bias, write, then sum" in text and "step, donated" in text
