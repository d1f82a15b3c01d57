"""Resident memory of this process."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident() -> dict[str, float] | None:
    """Return the current and the highest resident memory in MB; None where only Linux tells.

    The portable ``ru_maxrss`` is no substitute: a new process inherits its parent's.
    """
    if not _STATUS.is_file():
        return None
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return {
        "current": int(fields["VmRSS"].split()[0]) * 1024 / 1e6,
        "peak": int(fields["VmHWM"].split()[0]) * 1024 / 1e6,
    }
