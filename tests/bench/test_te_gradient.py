import functools
import math
from itertools import pairwise

import pytest
import te_counts
import te_gradient

TINY = ("--match", "^(nn.softmax|ladder|conv1d k3|take)", "--repeats", "1", "--depth", "500")

measured = functools.cache(te_counts.measure)


def test_json_form(bench):
    result = bench("te_gradient.py", "--json", *TINY)
    assert result["benchmark"] == "te_gradient"
    assert result["machine"].keys() >= {"processor", "cores", "python"}
    assert any(case["case"] == "nn.softmax" and case["seconds"] > 0 for case in result["topi"])
    (ladder,) = result["growth"]
    assert ladder["depths"] == [250, 500]
    assert len(ladder["seconds"]) == 2 and len(ladder["ratios"]) == 1
    assert [row["contraction"] for row in result["contractions"]] == [
        case.name for case in te_counts.CONTRACTIONS if case.name.startswith("conv1d k3")
    ]
    assert [row["graph"] for row in result["others"]] == ["take rows"]


def test_page_has_every_figure(monkeypatch):
    row = te_counts.measure(te_counts.CONTRACTIONS[0])
    result = {
        "topi": [{"case": "tanh", "seconds": 0.002}, {"case": "sort", "refused": "why"}],
        "growth": [{"graph": "g", "depths": [1, 2], "seconds": [0.5, 1.5], "ratios": [3.0]}],
        "contractions": [row],
        "others": [te_counts.measure_other("take rows")],
        "machine": {"processor": "P", "python": "3"},
        "repeats": 3,
    }
    page = te_gradient.page(result)
    for part in ("median 2.0 ms; 1 refused", "tanh 2 ms", "| g | 2 | 1.500 | 3.00 |", "by hand"):
        assert part in page, part
    assert f"| {row['contraction']} | {row['forward']:,} |" in page
    assert "take rows" in page


@pytest.mark.parametrize("case", te_counts.CONTRACTIONS, ids=lambda case: case.name)
def test_no_gradient_takes_more_than_one_by_hand(case):
    assert max(measured(case)["ratios"]) <= 1.0


@pytest.mark.parametrize("case", te_counts.CONTRACTIONS, ids=lambda case: case.name)
def test_counts_of_contractions_on_the_page_are_current(case):
    line = te_counts.markdown([measured(case)], []).splitlines()[2]
    assert line in te_gradient.PAGE.read_text("utf-8").splitlines(), line


@pytest.mark.parametrize("name", te_counts.OTHERS)
def test_other_counts_on_the_page_are_current(name):
    line = te_counts.markdown([], [te_counts.measure_other(name)]).splitlines()[-1]
    assert line in te_gradient.PAGE.read_text("utf-8").splitlines(), line


@pytest.mark.parametrize("name", te_gradient.SHAPES)
def test_growth_is_measured_at_doubled_depths(name):
    build, depths = te_gradient.SHAPES[name]
    assert all(b == 2 * a for a, b in pairwise(depths))
    entry = te_gradient.measure_growth(name, repeats=1, most=depths[0])
    assert entry["ratios"] == [] and math.isfinite(entry["seconds"][0])
    assert build(3).shape[0] == te_gradient.EXTENT
