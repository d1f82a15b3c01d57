"""How busy everything else kept the machine while a contender ran."""

from __future__ import annotations

import os
import time

try:
    import psutil  # type: ignore[import-untyped]
except ModuleNotFoundError:
    raise SystemExit(
        "psutil is missing, which tells the load of the machine; install graphgrad's extra "
        "'bench': pip install 'graphgrad[bench]'"
    ) from None


class LoadMeter:
    """Measures, from its creation on, the cores that other processes kept busy.

    Parameters
    ----------
    pid : int
        The contender, whose own work does not count; neither does that of this process.
    """

    def __init__(self, pid: int):
        self._own = [psutil.Process(pid), psutil.Process(os.getpid())]
        self._start = self._now()

    def foreign_cores(self) -> float:
        """Return the mean number of cores busy with others' work so far."""
        seconds, busy, own = (
            now - then for now, then in zip(self._now(), self._start, strict=True)
        )
        return max(0.0, busy - own) / seconds

    def _now(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        # A guest's time is counted in user time; waiting for a disk leaves the core free.
        busy = sum(
            getattr(times, kind, 0.0)
            for kind in ("user", "nice", "system", "irq", "softirq", "steal")
        )
        own = [process.cpu_times() for process in self._own]
        return time.perf_counter(), busy, sum(t.user + t.system for t in own)
