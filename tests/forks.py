"""Programs in processes of their own, forked from one that has imported what takes long to import.

A process takes seconds to import TVM and graphgrad. Here it is done once, before TVM has made a
thread or read a setting, and each program runs in a fork: it finds the modules as new, sees the
environment that it is given, may set what it likes, may end its process, and ends as others do.
What must be there before the interpreter starts, such as a seed of hashes, or before TVM is
imported, is for processes that start from nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CAN_FORK = sys.platform == "linux"

SECONDS = 300
"""After which a program is ended."""


class Forks:
    """Runs programs in forks of a process, or in new processes where forks are not safe.

    Parameters
    ----------
    server : Popen or None
    """

    def __init__(self, server: subprocess.Popen[str] | None):
        self._server = server

    def run(
        self,
        program: str | Path,
        *arguments: object,
        cwd: Path | None = None,
        environment: dict[str, str] | None = None,
        seconds: int = SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Run Python as a script; return its status and what it said, as `subprocess.run` does.

        Parameters
        ----------
        program : str or Path
            The text of a script, or where it is.
        *arguments
            In ``sys.argv`` behind the path of the script, as strings.
        cwd : Path, optional
        environment : dict, optional
            All of it; that of this process if not given.
        seconds : int
            After which the program is ended.

        Raises
        ------
        TimeoutExpired
        """
        environment = dict(os.environ) if environment is None else environment
        with tempfile.TemporaryDirectory() as folder:
            if isinstance(program, str):
                script = Path(folder, "program.py")
                script.write_text(program, encoding="utf-8")
            else:
                script = program
            command = [str(script), *map(str, arguments)]
            said = [Path(folder, name) for name in ("output", "errors")]
            if self._server is None:
                return subprocess.run(
                    [sys.executable, *command], cwd=cwd, env=environment, timeout=seconds,
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
            asked = {
                "command": command,
                "cwd": os.fspath(cwd or Path.cwd()),
                "environment": environment,
                "said": [str(path) for path in said],
                "seconds": seconds,
            }
            assert self._server.stdin is not None and self._server.stdout is not None
            print(json.dumps(asked), file=self._server.stdin, flush=True)
            status = int(self._server.stdout.readline())
            if status == -signal.SIGALRM:
                raise subprocess.TimeoutExpired(command, seconds)
            texts = [path.read_text(errors="replace") for path in said]
            return subprocess.CompletedProcess(command, status, *texts)


@contextlib.contextmanager
def forks(*modules: str, environment: dict[str, str] | None = None) -> Iterator[Forks]:
    """A process that has imported modules, and whose forks run programs."""
    if not CAN_FORK:
        yield Forks(None)
        return
    command = [sys.executable, "-m", "tests.forks", *modules]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[1], env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        yield Forks(server)
        # Not by the end of its input, which a process that a test has forked may hold open.
        server.terminate()


def _become(asked: dict[str, Any]) -> None:
    """Be the process that is asked for, up to its first line."""
    for number, name in enumerate((os.devnull, *asked["said"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = asked["command"]
    sys.path[0] = str(Path(asked["command"][0]).parent)
    signal.alarm(asked["seconds"])


def _serve() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            _become(asked)
            runpy.run_path(asked["command"][0], run_name="__main__")
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
