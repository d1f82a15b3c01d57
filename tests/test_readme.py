"""The examples of the README and of the first steps run as they stand."""

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs" / "first-steps.md"]
EXAMPLE = re.compile(r"(?:<!-- needs: (\w+) -->\n)?```python\n(.*?)```", re.DOTALL)
EXAMPLES = [
    pytest.param(*example, id=f"{page.stem}-{index}")
    for page in PAGES
    for index, example in enumerate(EXAMPLE.findall(page.read_text("utf-8")))
]


@pytest.mark.parametrize("tool, example", EXAMPLES)
def test_example_runs(tool, example, tmp_path, python):
    if tool and not shutil.which(tool):
        pytest.skip(f"the example needs {tool}, which is not on the PATH")
    done = python.run(example, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_there_are_examples():
    assert len(EXAMPLES) >= 6


def test_the_readme_is_short():
    assert len(PAGES[0].read_text("utf-8").splitlines()) <= 180
