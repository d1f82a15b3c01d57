"""Signals that end a run: it takes its step to the end and saves, and its exit code names them."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = [number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP")]


def exit_code(number: int) -> int:
    """The exit code of a process that a signal has ended, as shells have it."""
    return 128 + number


@contextmanager
def interruptible() -> Iterator[Callable[[], signal.Signals | None]]:
    """Yield a function that gives the signal which asked to stop, None as long as none did.

    Ctrl-C pressed again stops at once. Other signals may come in pairs, such as those of a machine
    that shuts down, and leave the time to save.
    """
    received: list[signal.Signals] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(signal.Signals(number))

    previous = {number: signal.getsignal(number) for number in STOPPING}
    try:
        for number in STOPPING:
            # `nohup` asks to outlive the terminal.
            if number.name != "SIGHUP" or previous[number] != signal.SIG_IGN:
                signal.signal(number, receive)
        yield lambda: received[0] if received else None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
