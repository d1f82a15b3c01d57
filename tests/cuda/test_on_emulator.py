"""The tests of `tests/cuda/device` on an emulated device: see `python -m tests.emulator`."""

from pathlib import Path

import pytest

PROGRAM = """
import sys
import pytest

sys.path[0] = ""
sys.exit(pytest.main(sys.argv[1:]))
"""

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(ROOT) for path in Path(__file__).parent.glob("device/test_*.py"))
SLOW = ("test_models",)
"""Files in which all tests are slow: they are run by the command that they tell."""

LONG = ("test_training",)
"""Files that take as long as all others: single steps are in these."""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in LONG))
        for path in FILES
        if path.stem not in SLOW
    ],
)
def test_on_emulator(path, beside_emulator):
    done = beside_emulator(PROGRAM, "-q", "-m", "not slow", path, cwd=ROOT)
    report = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, report
    assert " passed" in done.stdout.splitlines()[-1], report
