"""A process that makes training steps, stopped whenever it is not its turn."""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

Prepare = Callable[..., Callable[[], float]]
"""Makes a function that makes a step and returns the loss before it."""


class ContenderError(Exception):
    """A contender failed; the message says how."""


class Contender:
    """A process that has made its first step.

    It is stopped between its turns, not merely idle: threads that wait spin for a while, and would
    take the cores of whoever runs next.

    Parameters
    ----------
    prepare : callable
        Called in the process; a function of a module, as all that is sent to a new process.
    arguments : tuple
        Its arguments.

    Attributes
    ----------
    loss : float
        Before the first step.
    first_step : float
        Seconds until it was made.

    Raises
    ------
    ContenderError
        No step could be made.
    """

    def __init__(self, prepare: Prepare, arguments: tuple[Any, ...]):
        context = multiprocessing.get_context("spawn")  # threads of this process are no matter
        self._connection, other = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(other, prepare, arguments), daemon=False
        )
        self._process.start()
        other.close()
        try:
            self.loss, self.first_step = self._answer()
        except BaseException:
            self.close()
            raise

    def run(self, count: int) -> list[float]:
        """The seconds of some steps, which are made now.

        Raises
        ------
        ContenderError
        """
        assert self._process.pid is not None
        try:
            os.kill(self._process.pid, signal.SIGCONT)
            self._connection.send(count)
        except OSError:
            raise self._ended() from None
        seconds: list[float] = self._answer()
        return seconds

    def close(self) -> None:
        """End the process, stopped or not."""
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _answer(self) -> Any:
        """What it says; it is stopped then."""
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(answer, str):
            raise ContenderError(answer)
        self._stop()
        return answer

    def _ended(self) -> ContenderError:
        self._process.join()
        return ContenderError(f"the process ended with status {self._process.exitcode}")

    def _stop(self) -> None:
        """Stop the process, and wait until all its threads have."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise ContenderError(f"the process ended with status {status}")


def take_turns(
    contenders: Mapping[str, Contender], rounds: int, seconds: float
) -> dict[str, float | ContenderError]:
    """The median over rounds of the median step of each, in seconds; or why it is out.

    Parameters
    ----------
    contenders : mapping of str to Contender
    rounds : int
        Turns of each; their order changes, so that nobody always follows the same one.
    seconds : float
        About how long a turn takes.
    """
    turns: dict[str, list[float]] = {name: [] for name in contenders}
    failed: dict[str, ContenderError] = {}
    order = list(contenders)
    for _ in range(rounds):
        for name in order:
            if name not in failed:
                try:
                    turns[name].append(_turn(contenders[name], seconds))
                except ContenderError as error:
                    failed[name] = error
        order = order[1:] + order[:1]
    return {name: failed.get(name) or statistics.median(turns[name]) for name in contenders}


def _turn(contender: Contender, seconds: float) -> float:
    """The median of some steps, but for the first, which finds caches cold and threads asleep."""
    (first,) = contender.run(1)
    count = max(1, min(100, round(seconds / first)))
    return statistics.median(contender.run(count))


def _serve(connection: Connection, prepare: Prepare, arguments: tuple[Any, ...]) -> None:
    """Make the first step, and then as many as are asked for."""
    try:
        start = time.perf_counter()
        step = prepare(*arguments)
        connection.send((step(), time.perf_counter() - start))
        while True:
            seconds = []
            for _ in range(connection.recv()):
                start = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - start)
            connection.send(seconds)
    except EOFError:  # nobody listens any more
        return
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
