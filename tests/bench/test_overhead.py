import pytest


@pytest.mark.slow
def test_figures_of_a_small_model(bench):
    result = bench("overhead.py", "--json", "--models", "mlp", "--rounds", "1", "--threads", "1")
    figures = result["models"]["mlp"]
    assert result["threads"] == 1 and figures["kernels_called"] > 3
    assert 0 < figures["machine"] < figures["overhead"]
    assert figures["python"] == figures["overhead"] - figures["machine"]


def test_the_table(bench):
    text = bench("overhead.py", "--models", "mlp", "--rounds", "1", "--cpu-time")
    assert text.splitlines()[0].split()[:3] == ["model", "step", "overhead"]
    assert text.splitlines()[2].startswith("mlp")
