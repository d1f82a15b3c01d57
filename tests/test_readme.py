"""The README's examples run as they stand."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
EXAMPLES = re.findall(
    r"(?:<!-- needs: (\w+) -->\n)?```python\n(.*?)```",
    README.read_text(encoding="utf-8"),
    re.DOTALL,
)


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_example_runs(index, tmp_path):
    tool, example = EXAMPLES[index]
    if tool and not shutil.which(tool):
        pytest.skip(f"the example needs {tool}, which is not on the PATH")
    script = tmp_path / "example.py"
    script.write_text(example, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_there_are_examples():
    assert len(EXAMPLES) >= 3
