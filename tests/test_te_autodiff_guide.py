"""The examples of docs/te-autodiff.md run as they stand."""

import re
from pathlib import Path

import pytest

from graphgrad.fallback import intrinsics

GUIDE = Path(__file__).parent.parent / "docs" / "te-autodiff.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_example_runs(index, monkeypatch):
    # What an example registers is gone after it.
    monkeypatch.setattr(intrinsics, "_OF_USERS", {})
    exec(compile(EXAMPLES[index], str(GUIDE), "exec"), {})


def test_there_are_examples():
    assert len(EXAMPLES) >= 7
