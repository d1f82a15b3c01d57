import json

from journal import Journal, Line


def test_files_are_whole_after_each_line(tmp_path, capsys):
    journal = Journal(tmp_path, {"date": "today"})
    figures = {
        "step_ms": 10.0,
        "first_step_seconds": 1.5,
        "memory": {"growth_mb": 123.4},
        "gpu": {"clocks.sm": "1980", "temperature.gpu": "45", "power.draw": "650.1"},
    }
    journal.add(Line("benchmark", "net", "graphgrad fp32", "measured", figures=figures))
    journal.add(Line("benchmark", "net", "torch eager fp32", "BROKEN", "first\nsecond", 3.0))
    faster = Line("benchmark", "net", "torch eager fp32", "measured", figures=figures)
    faster.figures = figures | {"step_ms": 5.0, "gpu": None, "memory": None}
    text = (tmp_path / "results.txt").read_text()
    assert "BROKEN: net, torch eager fp32: first\n" in text and "NOT FINISHED" in text
    journal.add(faster)
    journal.finish()
    result = json.loads((tmp_path / "results.json").read_text())
    assert result["finished"] and result["date"] == "today"
    assert [line["status"] for line in result["lines"]] == ["measured", "measured"]
    rows = (tmp_path / "results.txt").read_text().splitlines()
    ours, theirs = (" ".join(row.split()) for row in rows[2:4])
    assert ours == "net, graphgrad fp32 measured 10.00 1.00 1.5 123 1980 45 650.1"
    assert theirs == "net, torch eager fp32 measured 5.00 0.50 1.5"
    assert "torch eager fp32" in capsys.readouterr().err
