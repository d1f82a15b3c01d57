"""The README's examples run as they stand."""

import re
import shutil
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
EXAMPLES = re.findall(
    r"(?:<!-- needs: (\w+) -->\n)?```python\n(.*?)```",
    README.read_text(encoding="utf-8"),
    re.DOTALL,
)


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_example_runs(index, tmp_path, python):
    tool, example = EXAMPLES[index]
    if tool and not shutil.which(tool):
        pytest.skip(f"the example needs {tool}, which is not on the PATH")
    done = python.run(example, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_there_are_examples():
    assert len(EXAMPLES) >= 3
