import ast

import pytest
from mutants import MUTANTS, Mutant, judge, report

from tests.map import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_line_that_is_there(mutant):
    original = (ROOT / "graphgrad" / mutant.path).read_text("utf-8")
    assert original.count(mutant.old) == 1
    assert "\n" not in mutant.old + mutant.new
    assert ast.dump(ast.parse(mutant.source())) != ast.dump(ast.parse(original))
    assert mutant.arguments()
    assert all((ROOT / a).exists() for a in mutant.arguments() if a.startswith("tests/"))


def test_who_notices_is_told(tmp_path):
    (tmp_path / "graphgrad" / "registry").mkdir(parents=True)
    mutant = MUTANTS[0]
    path = tmp_path / "graphgrad" / mutant.path
    path.write_text("before")
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n\n\ndef test_a():\n    pass\n\n\ndef test_b():\n"
        f"    assert {mutant.old!r} in Path('graphgrad', {mutant.path!r}).read_text()\n"
    )
    assert judge(mutant, tmp_path, ["test_it.py"]) == {
        "noticed_by": "test_it.py::test_b",
        "tests": 2,
    }
    assert judge(mutant, tmp_path, ["test_it.py::test_a"]) == {"noticed_by": None, "tests": 1}
    assert path.read_text() == "before"
    with pytest.raises(RuntimeError, match="pytest ended with 5"):
        judge(mutant, tmp_path, ["-k", "none", "test_it.py"])


def test_the_report_names_what_nobody_notices():
    mutant = Mutant("a bug", "ir/tensor.py", "x", "y")
    found = {**vars(mutant), "mapped": {"noticed_by": None, "tests": 3}, "smoke": None}
    text = report({mutant.name: found}, ["mapped", "smoke"])
    assert "NOBODY" in text and "not run" in text
