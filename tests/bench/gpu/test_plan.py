"""Plans and budgets of training steps on a GPU: one network whole, and what is told of others."""

import json

import budget
import plan
import pytest
from budget import Budget
from plan import Planned

from graphgrad.lower.cuda.library import select
from graphgrad.runtime.cudnn.backend import library_path
from tests.peers import required


@pytest.fixture(scope="module")
def cudnn():
    required("cuDNN", library_path() is not None)


# A step that keeps its budget has the same plans; this one looks at what is said of them.
@pytest.mark.slow
def test_every_contraction_of_a_network_is_planned(cudnn, monkeypatch):
    monkeypatch.delenv(select.SWITCH)
    found = plan.planned("resnet18-64", "bfloat16", "h200")
    assert found.contractions == 62 and found.planned == found.problems
    assert found.epilogues > 15 and found.workspace > 0
    # All but the time, which is that of a shared machine.
    assert [each for each in found.shortfalls() if "planned in" not in each] == []


def test_a_network_keeps_its_budget(cudnn, monkeypatch):
    monkeypatch.delenv(select.SWITCH)
    found, calls = budget.budget("resnet18-64", "bfloat16", "sm_90")
    assert found.library_calls == 61 and len(calls) == found.calls
    known = json.loads(budget.RATCHET.read_text(encoding="utf-8"))
    assert budget.shortfalls([found], known) == []


def test_what_falls_short_of_plans():
    found = Planned("net", "tf32", "a100", 3, 2, unplanned={"matmul of 2x2": "no engine"})
    found.workspace, found.seconds = 1 << 30, 61.0
    assert len(found.shortfalls()) == 3 and "no plan for matmul of 2x2" in found.shortfalls()[0]
    assert Planned("net", "tf32", "a100", 0, 0).shortfalls() == [
        "net in tf32 on a100: no contraction is found"
    ]


def test_a_ratchet_goes_down_only():
    def of(kernels):
        return Budget("net", "tf32", "sm_90", 9, 1, kernels, 1.5, 2.25)

    known = {"net tf32 sm_90": {"kernels": 7, "gigabytes": 1.6, "milliseconds": 2.25}}
    assert budget.shortfalls([of(7)], known) == []
    assert budget.shortfalls([of(8)], known) == ["net tf32 sm_90: 8 kernels, of 7"]
    assert "is not in budgets.json" in budget.shortfalls([of(7)], {})[0]
    assert budget._ratcheted([of(8)], known)["net tf32 sm_90"] == {
        "kernels": 7, "gigabytes": 1.5, "milliseconds": 2.25
    }  # fmt: skip
    assert "7 milliseconds" not in budget.text([of(7)])


def test_what_falls_short_of_goals():
    def of(kernels, milliseconds):
        return Budget("resnet50-64", "bfloat16", "sm_90", 9, 1, kernels, 20.0, milliseconds)

    assert budget.short_of_goals([of(500, 7.5)]) == []
    assert budget.short_of_goals([of(501, 7.6)]) == [
        "resnet50-64 bfloat16 sm_90: 501 kernels, the goal is 500",
        "resnet50-64 bfloat16 sm_90: 7.6 milliseconds, the goal is 7.5",
    ]
