"""A text stream that nobody has to read: work goes on where it cannot be written."""

import os
from typing import TextIO


class Stream:
    """A standard stream that goes silent at the first failure to write it.

    Its reader may have gone (``| head``, a closed terminal), or its disk be full.

    Parameters
    ----------
    stream : TextIO or None
        None, as Python has it, is one that was closed when the process started.

    Attributes
    ----------
    failure : OSError or None
        Why it went silent.
    """

    def __init__(self, stream: TextIO | None):
        self._stream = stream
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        """Write text, if that is still possible."""
        if self._stream is not None:
            try:
                self._stream.write(text)
            except OSError as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except OSError as error:
                self._give_up(error)

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream is not None and self._stream.isatty()

    @property
    def encoding(self) -> str:
        """The encoding of the text."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def _give_up(self, error: OSError) -> None:
        """Go silent for good, what Python has still to write to the stream included."""
        self.failure = error
        if self._stream is not None:
            discard(self._stream)
        self._stream = None


def discard(stream: TextIO) -> None:
    """Let whatever is written to a stream from now on, also when Python ends, go nowhere."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # it stands for no file
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
