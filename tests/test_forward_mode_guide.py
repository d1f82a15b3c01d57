"""The examples of docs/forward-mode.md run as they stand."""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parent.parent / "docs" / "forward-mode.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_example_runs(index):
    exec(compile(EXAMPLES[index], str(GUIDE), "exec"), {})
