"""Running a few lines of Python beside the emulated driver."""

import subprocess
import sys
from dataclasses import dataclass

import pytest

from tests.emulator.toolchain import MissingToolError, environment

_PRELUDE = "from tests.emulator.client import *\n"


@dataclass
class Said:
    """What a process has said.

    Attributes
    ----------
    lines : list of str
        What it printed.
    errors : str
        What it and the driver wrote to standard error.
    status : int
    """

    lines: list[str]
    errors: str
    status: int


@pytest.fixture(scope="session")
def emulator_environment():
    try:
        return environment()
    except MissingToolError as error:
        pytest.skip(str(error))


@pytest.fixture
def emulated(emulator_environment):
    """Return a function that runs lines of Python beside the client of the driver."""

    def run(lines: str, **settings: str) -> Said:
        variables = {f"GRAPHGRAD_EMULATOR_{name}": value for name, value in settings.items()}
        done = subprocess.run(
            [sys.executable, "-c", _PRELUDE + lines],
            env={**emulator_environment, **variables},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return Said(done.stdout.splitlines(), done.stderr, done.returncode)

    return run
