"""Facts about the machine and the software that figures depend on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PACKAGES = ("graphgrad", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "torch")


def facts() -> dict[str, Any]:
    """Return what a reader needs to compare figures; nothing that names the machine."""
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    """Return the installed version of each package; None where it is missing."""
    return {package: _version(package) for package in packages}


def machine_of(result: Mapping[str, Any]) -> str:
    """Return in words which machine, and how much of it, a result is of."""
    machine, threads = result["machine"], result["settings"]["threads"]
    return (
        f"{machine['processor']}, {threads} threads on {machine['cores']} cores, "
        f"Python {machine['python']}"
    )


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """Return the processor's model, which `platform` does not know on Linux."""
    table = Path("/proc/cpuinfo")
    if table.is_file():
        for line in table.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
