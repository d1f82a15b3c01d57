"""The examples of docs/custom-gradients.md run as they stand."""

import re
from pathlib import Path

import pytest

from graphgrad.fallback import intrinsics
from graphgrad.registry import rule

GUIDE = Path(__file__).parent.parent / "docs" / "custom-gradients.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_example_runs(index, monkeypatch):
    # What an example registers is gone after it.
    monkeypatch.setattr(intrinsics, "_OF_USERS", {})
    for tables in (rule._RULES, rule._FUNCTION_RULES):
        monkeypatch.setitem(tables, "user", {})
    exec(compile(EXAMPLES[index], str(GUIDE), "exec"), {"__name__": "example"})


def test_there_are_examples():
    assert len(EXAMPLES) >= 6
