"""Programs in forks behave as processes that start from nothing."""

import os
import signal
import subprocess
import sys

import pytest

from tests.forks import forks

PROGRAM = """
import atexit, os, sys

atexit.register(print, "ends")
assert not hasattr(sys, "seen")
sys.seen = True
print(__name__, sys.argv[1:], os.getcwd(), sorted(os.environ.items()), sys.stdin.read())
print("said", file=sys.stderr)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def running():
    with forks("decimal") as running:
        yield running


@pytest.mark.parametrize("status", [0, 3])
def test_as_a_process_that_starts_from_nothing(running, tmp_path, status):
    environment = {"ONE": "1", "LC_CTYPE": "C.UTF-8"}
    arguments = ["é", str(status)]
    (tmp_path / "program.py").write_text(PROGRAM)
    expected = subprocess.run(
        [sys.executable, tmp_path / "program.py", *arguments], cwd=tmp_path, env=environment,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    done = running.run(PROGRAM, *arguments, cwd=tmp_path, environment=environment)
    assert expected.returncode == status and expected.stdout.endswith("ends\n")
    assert (done.returncode, done.stdout, done.stderr) == (status, expected.stdout, "said\n")


def test_an_error(running):
    done = running.run("raise ValueError('so')")
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == "ValueError: so"


def test_a_program_that_does_not_end(running):
    with pytest.raises(subprocess.TimeoutExpired):
        running.run("import time\ntime.sleep(60)", seconds=1)


def test_a_program_that_is_ended(running):
    done = running.run("import os\nprint('here', flush=True)\nos.abort()")
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "here\n")


def test_what_is_imported_is_there(running):
    assert running.run("import sys\nassert 'decimal' in sys.modules").returncode == 0
    assert running.run("import os\nprint(os.getppid())").stdout != f"{os.getpid()}\n"
