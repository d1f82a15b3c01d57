"""The other end of a worker: a contender's process, stopped whenever it is not its turn."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workload import Workload

_WORKER = Path(__file__).with_name("worker.py")
CACHE_VARIABLES = ("GRAPHGRAD_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
THREAD_VARIABLES = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class ContenderError(Exception):
    """A contender failed; the message says how."""


class Stepping:
    """A process that makes steps, made to run only inside `run` and while it starts.

    It is stopped in between, not merely idle: TVM's threads spin for a while after a call and
    would take the cores of whoever runs next.

    Parameters
    ----------
    name : str
    command : sequence of str
        Speaks as `worker.py` does.
    environment : mapping
        Variables that it has besides those of this process.
    limit : float, optional
        Seconds that an answer may take; after that the process counts as hung.

    Attributes
    ----------
    name : str
    pid : int
    facts : dict
        What the contender reported of its initial step.
    memory : dict or None
        Growth of resident memory, as of the last answer.

    Raises
    ------
    ContenderError
        It could not make its first step.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        limit: float | None = None,
    ):
        self.name = name
        self._limit = limit
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | dict(environment),
        )
        self.pid = self._process.pid
        try:
            self.facts = self._answer()
            self._stop()
        except BaseException:
            self.close()
            raise
        self.memory = self.facts.pop("memory")

    def run(self, timed: int, untimed: int = 0) -> list[float]:
        """Let it make steps, the untimed ones first, and return the seconds of the timed ones.

        Raises
        ------
        ContenderError
        """
        answer = self.ask({"untimed": untimed, "timed": timed})
        self.memory = answer["memory"]
        return answer["seconds"]

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Let it do what a request says, and return its answer.

        Raises
        ------
        ContenderError
        """
        self._process.send_signal(signal.SIGCONT)
        self._send(request)
        answer = self._answer()
        self._stop()
        return answer

    def close(self) -> None:
        """End the process, stopped or not."""
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _stop(self) -> None:
        """Stop the process, and wait until all its threads have."""
        self._process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._process.returncode = os.waitstatus_to_exitcode(status)
            raise ContenderError(self._last_words())

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ContenderError(self._last_words()) from None

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        # An answer is one line to one request, so nothing waits in the reader's own buffer.
        if not select.select([self._process.stdout], [], [], self._limit)[0]:
            raise ContenderError(f"no answer within {self._limit:.0f} s: it hangs, or is too slow")
        line = self._process.stdout.readline()
        if not line:
            raise ContenderError(self._last_words())
        answer = json.loads(line)
        if "error" in answer:
            raise ContenderError(answer["error"])
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().splitlines() or ["it printed nothing"]
        return f"the process ended with status {code}; its last line: {lines[-1]}"


class Contender(Stepping):
    """The process of one of `contenders`, which trains one workload.

    What it compiles is kept in the workload's folder, not where earlier runs have left something.
    With `tree` it imports the graphgrad of that checkout. `known` has its module and options,
    `clock` is the function of `time` that times its steps, `environment` further variables.
    """

    def __init__(
        self,
        name: str,
        workload: Workload,
        threads: int,
        known: Mapping[str, tuple[str, dict[str, Any]]],
        tree: Path | None = None,
        clock: str = "perf_counter",
        environment: Mapping[str, str] | None = None,
    ):
        module, options = known[name]
        told = [module, json.dumps(options), str(workload.folder), str(threads), clock]
        command = [sys.executable, str(_WORKER), *told]
        caches = {variable: str(workload.folder / variable) for variable in CACHE_VARIABLES}
        path = {} if tree is None else {"PYTHONPATH": str(tree.resolve())}
        variables = dict.fromkeys(THREAD_VARIABLES, str(threads)) | caches | path
        variables |= dict(environment or {})
        super().__init__(name, command, variables)
