"""The campaign of loops; the tests of its cases are those of `tests.ops.random_loops`."""

import pytest
from campaign import Case, Disagreement

from tests.peers import peer


@pytest.fixture
def recurrences():
    peer("torch")
    peer("onnxruntime")
    return peer("recurrences")


@pytest.mark.parametrize("index", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_cases_agree(recurrences, tmp_path, index):
    recurrences.judge_loop(Case("recurrences", 0, index, tmp_path))
    assert (tmp_path / "loop.txt").read_text()


def test_what_is_wrong_is_kept(recurrences, tmp_path, monkeypatch):
    def wrong(*arguments):
        raise recurrences.DisagreementError("gradient 1 at (0, 2) is 1.0, expected 2.0")

    monkeypatch.setattr(recurrences, "judge", wrong)
    with pytest.raises(Disagreement, match=r"loop: gradient 1$"):
        recurrences.judge_loop(Case("recurrences", 0, 0, tmp_path))
    assert "expected 2.0" in (tmp_path / "difference.txt").read_text()
