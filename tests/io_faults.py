"""Faults at the k-th operation on files: a full disk, or the end of the process.

    with io_operations(folder) as names:                       # what is done, in order
        save()
    for index, name in enumerate(names):
        with io_operations(folder, index, disk_full), pytest.raises(OutputError):
            save()
        in_process(save_with_fault)                             # for `killed`

Counted are operations that change files in a folder: making one, each write, ``fsync``, renaming,
and removing. Faults with ``half=True`` let half of a write reach the file.
"""

import builtins
import errno
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock


def disk_full() -> None:
    """The fault of a disk without space."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def killed() -> None:
    """The end of the process; nothing that handlers would do is done."""
    os.kill(os.getpid(), signal.SIGKILL)


def in_process(
    function: Callable[[], int | None], signals: Sequence[tuple[float, int]] = ()
) -> int:
    """Call a function in a copy of this process.

    Parameters
    ----------
    function : callable
        What it returns is the exit code, None is 0; what it raises makes it 1, an interrupt 130.
    signals : sequence of (float, int)
        Sent to the process, each after so many seconds.

    Returns
    -------
    int
        The exit code, or minus the number of the signal that ended the process.
    """
    process = os.fork()
    if process == 0:
        code = 1
        try:
            code = function() or 0
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    for seconds, number in signals:
        time.sleep(seconds)
        os.kill(process, number)  # there until it is waited for
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


Fault = Callable[[], None]


@contextmanager
def io_operations(
    folder: Path,
    at: int | Callable[[str], bool] | None = None,
    fault: Fault = disk_full,
    half: bool = False,
) -> Iterator[list[str]]:
    """Yield a list to which each operation on files in a folder adds its name.

    Parameters
    ----------
    folder : Path
    at : int or callable, optional
        The operation that fails: its index, or a predicate of its name, for all that it holds of.
    fault : callable
        Called there, to raise an error or to end the process.
    half : bool
        Of a write: after half of the data.
    """
    root = os.path.realpath(folder)
    faults = _Faults(root, at, fault, half)
    with ExitStack() as stack:
        for owner, name in _PATCHED:
            original = getattr(owner, name)
            patched = faults.opening(original) if name == "open" else faults.of(name, original)
            stack.enter_context(mock.patch.object(owner, name, patched))
        yield faults.names


_PATCHED = [
    (builtins, "open"),
    (io, "open"),
    (os, "fsync"),
    (os, "replace"),
    (os, "rename"),
    (Path, "unlink"),
    (Path, "mkdir"),
    (Path, "touch"),
]


class _Faults:
    """The operations so far, and which of them fails."""

    def __init__(self, root: str, at: int | Callable[[str], bool] | None, fault: Fault, half: bool):
        self.names: list[str] = []
        self._root = root
        self._at = at
        self._fault = fault
        self._half = half

    def begin(self, name: str) -> None:
        """Note an operation; raise if it fails."""
        fails = self._fails_next(name)
        self.names.append(name)
        if fails:
            self._fault()

    def _fails_next(self, name: str) -> bool:
        """Whether the next operation, of this name, is the one that fails."""
        return self._at(name) if callable(self._at) else len(self.names) == self._at

    def of(self, name: str, original: Callable) -> Callable:
        """An operation on a path or descriptor that may fail before it does anything."""

        def operation(subject, *arguments, **options):
            if self._inside(subject):
                target = arguments[0] if name in ("replace", "rename") else subject
                self.begin(f"{name} {_shown(target)}")
            return original(subject, *arguments, **options)

        return operation

    def opening(self, original: Callable) -> Callable:
        """`open`, whose files may fail to be created and written."""

        def opened(file, mode="r", *arguments, **options):
            is_written = any(letter in mode for letter in "wxa+") and self._inside(file)
            if is_written:
                self.begin(f"create {_shown(file)}")
            stream = original(file, mode, *arguments, **options)
            return _File(stream, _shown(file), self) if is_written else stream

        return opened

    def write(self, stream: io.IOBase, name: str, data) -> int:
        """Write to a file, all of the data, or half of it before the fault."""
        if self._half and self._fails_next(f"write {name}"):
            stream.write(data[: len(data) // 2])
            stream.flush()
        self.begin(f"write {name}")
        return stream.write(data)

    def _inside(self, subject) -> bool:
        """Whether a path or a descriptor is in the folder, or is the folder."""
        path = f"/proc/self/fd/{subject}" if isinstance(subject, int) else os.fspath(subject)
        path = os.path.realpath(path)
        return path == self._root or path.startswith(self._root + os.sep)


class _File:
    """An open file whose writes are counted."""

    def __init__(self, stream, name: str, faults: _Faults):
        self._stream, self._name, self._faults = stream, name, faults

    def write(self, data) -> int:
        return self._faults.write(self._stream, self._name, data)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return self._stream.__exit__(*exception)

    def __getattr__(self, name):
        return getattr(self._stream, name)


def _shown(subject) -> str:
    """The name of a path, without the random part that unfinished files have."""
    if isinstance(subject, int):
        subject = os.readlink(f"/proc/self/fd/{subject}")
    name = os.path.basename(os.fspath(subject))
    return f"{name.split('.unfinished')[0][1:-17]} (unfinished)" if "unfinished" in name else name
