"""A full disk never ends the process: programs are compiled in memory, and errors are ours."""

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs limits and mounts of Linux")

PROGRAM = """
import resource, sys
import numpy as np
import graphgrad as gg
from tests.train.nets import perceptron

limit = int(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
step = gg.train_step(perceptron(), optimizer=gg.optim.SGD(0.1))
print("loss", float(step(np.ones((2, 4), "float32"), np.arange(2))) > 0)
try:
    step.export(sys.argv[2])
except gg.ExportError as error:
    print("refused", error)
finally:
    print("finally")
"""


@pytest.fixture
def outcome(tmp_path, python):
    """Return a function that tells what a process prints that trains and exports.

    Its folder of temporary files is small.
    """
    (tmp_path / "temporary").mkdir()

    def outcome(cache, command=(), limit=0):
        environment = {
            **os.environ,
            "GRAPHGRAD_CACHE": cache,
            "GRAPHGRAD_CACHE_DIR": str(tmp_path / "cache"),
            "TMPDIR": str(tmp_path / "temporary"),
        }
        arguments = [str(limit), str(tmp_path / "export")]
        if command:
            done = subprocess.run(
                [*command, sys.executable, "-c", PROGRAM, *arguments],
                env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
        else:
            done = python.run(PROGRAM, *arguments, environment=environment)
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "export").exists()
        assert not list((tmp_path / "temporary").iterdir())
        return done.stdout

    return outcome


@pytest.mark.parametrize("cache", ["0", "1"])
def test_small_files_alone(outcome, cache):
    """A limit on files holds for memory too: LLVM is not asked to write at all."""
    said = outcome(cache, limit=16 << 10)
    assert said.startswith("loss True\nrefused") and said.endswith("finally\n")
    assert "files may have 16,384 bytes alone; see ulimit -f" in said


@pytest.mark.parametrize(
    ("size", "cache"),
    [
        ("16k", "1"),
        ("64k", "0"),
        pytest.param("16k", "0", marks=pytest.mark.slow),
        pytest.param("64k", "1", marks=pytest.mark.slow),
    ],
)
def test_no_room_for_temporary_files(tmp_path, outcome, cache, size):
    unshare = [shutil.which("unshare") or "unshare", "--mount", "--map-root-user"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount anything, even for itself")
    folder = tmp_path / "temporary"
    mounted = [*unshare, "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs {folder} && "$@"', "sh"]
    said = outcome(cache, mounted)
    assert said.startswith("loss True\nrefused") and said.endswith("finally\n")
    assert f"bytes are free in {folder}" in said
