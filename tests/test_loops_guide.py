"""The examples of docs/loops.md run as they stand."""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parent.parent / "docs" / "loops.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("index", range(2))
def test_example_runs(index):
    exec(compile(EXAMPLES[index], str(GUIDE), "exec"), {})
