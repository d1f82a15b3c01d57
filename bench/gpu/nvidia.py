"""What ``nvidia-smi`` says of the GPU, where it is there."""

from __future__ import annotations

import csv
import subprocess

_FACTS = ("name", "driver_version", "memory.total", "power.limit", "clocks.max.sm")
_NOW = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_event_reasons.active")


def facts() -> dict[str, str] | None:
    """Return the first GPU's model, driver and limits (MiB, W, MHz); None if nobody tells."""
    return _query(_FACTS)


def now() -> dict[str, str] | None:
    """Return clocks (MHz), temperature (°C), power (W) and what holds the clocks down, a mask."""
    return _query(_NOW)


def _query(fields: tuple[str, ...]) -> dict[str, str] | None:
    command = [
        "nvidia-smi",
        f"--query-gpu={','.join(fields)}",
        "--format=csv,noheader,nounits",
        "--id=0",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    values = next(csv.reader(done.stdout.splitlines(), skipinitialspace=True), [])
    return dict(zip(fields, values, strict=False))
