import memory_budget
import pytest


@pytest.mark.slow
def test_json_form(bench):
    result = bench("memory_budget.py", "--json", "--models", "small", "--budgets", "1.0,least")
    assert [row["budget"] for row in result["rows"]] == ["none", "1.0", "least"]
    none, whole, least = result["rows"]
    assert none["predicted_mb"] is None and whole["share"] == 1.0 and least["share"] < 1
    assert least["repeated"] > 0 and all(row["step_ms"] > 0 for row in result["rows"])


def test_budgets_and_report():
    assert memory_budget.budget_of("0.4/2", 5).repeats == 2
    assert memory_budget.budget_of("least", 5).limit == memory_budget.budget_of("5").limit == 5
    row = {"model": "unet", "budget": "0.6", "step_ms": 9.6, "ratio": 1.1, "repeated": 3}
    text = memory_budget.report([{**row, "predicted_mb": 12.0, "measured_mb": None}])
    assert text.splitlines()[-1].split() == ["unet,", "0.6", "10", "1.10", "12", "3"]
