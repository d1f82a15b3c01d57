"""Programs that see an emulated GPU."""

import pytest

from tests.emulator.toolchain import MissingToolError, environment
from tests.forks import forks


@pytest.fixture(scope="session")
def beside_emulator():
    """Return a function that runs a program beside the emulated driver, with some settings."""
    try:
        environ = environment()
    except MissingToolError as error:
        pytest.skip(str(error))
    with forks("graphgrad", environment=environ) as running:

        def run(program, *arguments, cwd=None, **settings):
            return running.run(program, *arguments, cwd=cwd, environment=environ | settings)

        yield run
