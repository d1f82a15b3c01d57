"""The benchmarks are programs, not a package: their modules find each other in their folder."""

import json
import sys
from pathlib import Path

import pytest

import graphgrad as gg

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))


@pytest.fixture
def bench(python):
    """Run a benchmark; return the JSON object that it prints, or its text without --json."""

    def run(program, *arguments):
        done = python.run(BENCH / program, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    return run


@pytest.fixture(autouse=True)
def _choices_are_undone():
    """Benchmarks choose how many threads compute in their process, which here is that of all."""
    yield
    gg.set_threads(None)
