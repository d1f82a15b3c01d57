"""The tests of `tests/cuda/device` on an emulated device: see `python -m tests.emulator`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator.toolchain import MissingToolError, environment

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(ROOT) for path in Path(__file__).parent.glob("device/test_*.py"))
LONG = ("test_training",)
"""Files that take as long as all others: single steps are in these."""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in LONG))
        for path in FILES
    ],
)
def test_on_emulator(path):
    try:
        environ = environment()
    except MissingToolError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", str(path)]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    report = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, report
    assert " passed" in done.stdout.splitlines()[-1], report
