"""How a worker speaks: JSON, one object a line, to the process that started it."""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path
from typing import Any, TextIO


def private_output() -> TextIO:
    """Return the standard output, and send what libraries print to standard error instead."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return channel


def send(channel: TextIO, answer: dict[str, Any]) -> None:
    channel.write(json.dumps(answer) + "\n")
    channel.flush()


def told(error: Exception) -> str:
    """Return an error in one text: its kind, what it says, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
