"""Worker processes that serve many cases, each within limits of time and memory.

A worker is replaced only when it dies, breaks a limit, or has grown; what it printed then, and
where it was, is in what came of the case.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

SIGNAL, TIME, MEMORY = "signal", "time", "memory"
"""Why a worker ended: by a signal or by leaving on its own, or because it broke a limit."""

_POLL_SECONDS = 0.05
_LAST_WORDS_SECONDS = 10
"""For a worker to say where it is; on a busy machine it waits for its turn."""
_END = object()


@dataclass(frozen=True)
class Served:
    """What came of a case.

    Attributes
    ----------
    case : Any
    value : Any
        What the judge returned; None where the worker ended instead.
    death : str or None
        `SIGNAL`, `TIME` or `MEMORY`; None where the judge returned.
    reason : str
        Of the death, in words.
    log : str
        What a worker that ended had printed, with its stack.
    seconds : float
    peak : int
        The highest resident memory, in bytes, as far as it was seen.
    """

    case: Any
    value: Any = None
    death: str | None = None
    reason: str = ""
    log: str = ""
    seconds: float = 0.0
    peak: int = 0


def serve(
    cases: Iterable[Any],
    judge: Callable[[Any], Any],
    jobs: int,
    seconds: float,
    memory: float = float("inf"),
) -> Iterator[Served]:
    """Yield what comes of each case, in the order in which they end.

    Parameters
    ----------
    cases : iterable
    judge : callable
        Called with a case in a fork of this process, so what was imported before is there. What it
        raises ends the worker.
    jobs : int
        How many workers.
    seconds, memory : float
        The limits of a case. Seconds are those in which the worker computes or waits for something
        else than a core, so that other work on the machine does not count; memory is what the whole
        worker may have resident, in bytes.
    """
    waiting = iter(cases)
    idle: list[_Worker] = []
    busy: list[_Worker] = []
    try:
        while True:
            while len(busy) < jobs and (case := next(waiting, _END)) is not _END:
                worker = idle.pop() if idle else _Worker(judge)
                busy.append(worker)
                worker.begin(case)
            if not busy:
                return
            wait([worker.connection for worker in busy], timeout=_POLL_SECONDS)
            for worker in list(busy):
                served = worker.look(seconds, memory)
                if served is None:
                    continue
                busy.remove(worker)
                # Half of what a case may take must be left for the next one.
                if served.death is None and worker.resident() < memory / 2:
                    idle.append(worker)
                else:
                    worker.end()
                yield served
    finally:
        for worker in [*idle, *busy]:
            worker.end()


class _Worker:
    """A forked process, and the case that it is at."""

    def __init__(self, judge: Callable[[Any], Any]):
        self.connection, theirs = multiprocessing.Pipe()
        self._log = tempfile.NamedTemporaryFile("rb")  # noqa: SIM115 (lives as long as the process)
        process = multiprocessing.get_context("fork").Process(
            target=_work, args=(theirs, self._log.name, judge), daemon=True
        )
        process.start()
        theirs.close()
        self._process = process
        self._case: Any = None
        self._begin = self._looked = self._cpu = self._idle = 0.0
        self._peak = 0

    def begin(self, case: Any) -> None:
        """Let it judge a case."""
        self._case, self._begin, self._peak = case, time.monotonic(), 0
        self._looked, self._idle, self._cpu = self._begin, 0.0, self._usage()[0]
        with contextlib.suppress(BrokenPipeError):  # that it is dead is seen when it is looked at
            self.connection.send(case)

    def look(self, seconds: float, memory: float) -> Served | None:
        """What came of its case; None while it is still at it, within its limits."""
        elapsed = self._elapsed()
        self._peak = max(self._peak, self.resident())
        if self.connection.poll():
            try:
                value, peak = self.connection.recv()
            except (EOFError, OSError):
                self._process.join()
                return self._dead(SIGNAL, _exit_text(self._process.exitcode), elapsed)
            self._peak = max(self._peak, peak)
            if self._peak <= memory:
                return Served(self._case, value, seconds=elapsed, peak=self._peak)
        if self._peak > memory:
            return self._killed(MEMORY, f"over {memory / 1e9:g} GB", elapsed)
        if elapsed > seconds:
            return self._killed(TIME, f"over {seconds:g} s", elapsed)
        return None

    def _elapsed(self) -> float:
        """The seconds of the case so far, without those in which it waited for a core."""
        now = time.monotonic()
        cpu, is_runnable = self._usage()
        self._idle += 0.0 if is_runnable else now - self._looked
        self._looked = now
        # Threads compute side by side.
        return min(now - self._begin, cpu - self._cpu + self._idle)

    def _usage(self) -> tuple[float, bool]:
        """The seconds that its threads have computed, and whether one of them can go on at once."""
        folder = Path(f"/proc/{self._process.pid}")
        try:
            fields = _fields(folder / "stat")
            states = [_fields(task / "stat")[0] for task in (folder / "task").iterdir()]
        except OSError:
            return 0.0, False
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"), "R" in states

    def resident(self) -> int:
        """Its resident memory in bytes; 0 where the system does not tell, or it is gone."""
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def end(self) -> None:
        """End it, with the processes that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self.connection.close()
        self._log.close()

    def _killed(self, cause: str, reason: str, elapsed: float) -> Served:
        """What came of a case that broke a limit; the worker is let say first where it is."""
        size = self._log_size()
        end = time.monotonic() + _LAST_WORDS_SECONDS
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, signal.SIGUSR1)
            while self._log_size() == size and self._process.is_alive() and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
            self._process.join(10 * _POLL_SECONDS)  # what has begun is written to its end
        return self._dead(cause, reason, elapsed)

    def _log_size(self) -> int:
        return os.fstat(self._log.fileno()).st_size

    def _dead(self, cause: str, reason: str, elapsed: float) -> Served:
        self._log.seek(0)
        log = self._log.read().decode(errors="replace")
        return Served(self._case, None, cause, reason, log, elapsed, self._peak)


def _work(connection: Connection, log: str, judge: Callable[[Any], Any]) -> None:
    os.setpgid(0, 0)
    if sys.platform == "linux":  # a worker must not outlive the process that it serves
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    # Anew: TVM, if it was imported since, put a handler of its own before that of the parent.
    faulthandler.disable()
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1, 2)
    while True:
        case = connection.recv()
        os.ftruncate(2, 0)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # peak = current
        value = judge(case)
        connection.send((value, _peak()))


def _fields(stat: Path) -> list[str]:
    """The fields of a process or a thread behind its name, which may hold anything."""
    return stat.read_text(encoding="utf-8").rpartition(")")[2].split()


def _peak() -> int:
    """The highest resident memory of this process since the start of the case, in bytes."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _exit_text(code: int | None) -> str:
    """How a process that ended by itself did, in words."""
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"
