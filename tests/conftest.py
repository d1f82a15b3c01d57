"""The environment of every test, and of the processes that tests start."""

import os

import pytest

# Tests look at what lowering does, and may replace parts of it; those of the cache turn it on.
os.environ["GRAPHGRAD_CACHE"] = "0"


def pytest_configure():
    """Let each of several processes that share the suite compute with its share of the machine."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        has_affinity = hasattr(os, "sched_getaffinity")
        count = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
        os.environ.setdefault("TVM_NUM_THREADS", str(max(count // processes, 1)))
        # Where a variable decides, TVM binds threads: those of all processes to the same core.
        os.environ.setdefault("TVM_BIND_THREADS", "0")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let tests that compile the same run in one process."""
    from tests.groups import ByGroup

    return ByGroup(config, log)
