"""The examples of docs/aliasing.md run as they stand."""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parent.parent / "docs" / "aliasing.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_example_runs(index, python):
    done = python.run(EXAMPLES[index])
    assert done.returncode == 0, done.stderr


def test_there_are_examples():
    assert len(EXAMPLES) >= 3
