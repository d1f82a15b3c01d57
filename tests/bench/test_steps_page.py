import json

import steps_page


def contender(ms, first=2.0, memory=100.0):
    return {
        "step_ms": ms,
        "first_step_seconds": first,
        "quiet": True,
        "memory": {"peak_growth_mb": memory},
    }


def result(isa=None, **models):
    return {
        "machine": {"processor": "P", "cores": 4},
        "settings": {"isa": isa, "threads": 2},
        "versions": {"torch": "2.13.0"},
        "mcpu": "znver4",
        "models": models,
    }


def entry(ours, torch, roofline=None, compiled=False):
    contenders = {"graphgrad": contender(ours, 1.0, 80.0), "torch": contender(torch)}
    contenders |= {"torch_compile": contender(2 * torch)} if compiled else {}
    return {"batch": 8, "roofline_ms": roofline, "contenders": contenders}


def test_the_page_is_that_of_the_records():
    written = steps_page.PAGE.read_text("utf-8")
    assert written == steps_page.page(steps_page.read_records()), "run python bench/steps_page.py"


def test_which_is_faster_is_said_by_processor():
    fast, equal, slow = entry(5.0, 10.0, 4.0, True), entry(10.0, 10.2), entry(12.0, 10.0)
    results = [result(fast=fast, equal=equal), result(slow=slow), result("avx2", fast=slow)]
    lines = steps_page.page(steps_page.recorded(results, {})).splitlines()
    first = lines.index("## P (znver4), 2 of 4 cores, PyTorch 2.13.0")
    second = lines.index("## P held to avx2, 2 of 4 cores, PyTorch 2.13.0")
    whole = lines[first:second]
    assert "- **graphgrad is faster:** `fast`." in whole
    assert "- **Neither is, by 5 %:** `equal`." in whole
    assert "- **PyTorch is faster:** `slow`." in whole
    assert "| `fast` | 8 | 5.0 | 10.0 | torch | 0.50 | 1.25 | 0.40 | 0.50 | 0.80 |" in whole
    assert "- **PyTorch is faster:** `fast`." in lines[second:]
    assert "Without `torch.compile`: equal, slow." in whole


def test_a_later_result_takes_the_place_of_an_earlier_one(tmp_path, monkeypatch):
    monkeypatch.setattr(steps_page, "RECORDS", tmp_path / "steps.json")
    monkeypatch.setattr(steps_page, "PAGE", tmp_path / "page.md")
    for ours in (12.0, 5.0):
        (tmp_path / "step.json").write_text(json.dumps(result(net=entry(ours, 10.0))), "utf-8")
        monkeypatch.setattr("sys.argv", ["steps_page.py", str(tmp_path / "step.json")])
        steps_page.main()
    text = (tmp_path / "page.md").read_text("utf-8")
    assert "**graphgrad is faster:** `net`" in text and "| 12.0 |" not in text
    assert steps_page.read_records()["P (znver4), 2 of 4 cores, PyTorch 2.13.0"].keys() == {"net"}


def test_what_had_not_the_machine_to_itself_is_left_out():
    loud = entry(5.0, 10.0)
    loud["contenders"]["torch"]["quiet"] = False
    (models,) = steps_page.recorded([result(loud=loud)], {}).values()
    assert not models
