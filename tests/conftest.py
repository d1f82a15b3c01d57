"""The environment of every test, and of the processes that tests start."""

import gc
import inspect
import linecache
import os
from pathlib import Path

import pytest

from tests.forks import forks
from tests.groups import ByGroup, is_long
from tests.optimization import optimization_of
from tests.smoke import is_smoke, is_smoke_file

# Tests look at what lowering does, and may replace parts of it; those of the cache turn it on.
os.environ["GRAPHGRAD_CACHE"] = "0"
# Programs for GPUs are the same whether cuDNN is installed or not; tests of libraries ask for it.
os.environ["GRAPHGRAD_LIBRARIES"] = "0"

TESTS = Path(__file__).parent


def _outer_frames(frame, context=1):
    """Like `inspect.getouterframes`, but only the innermost frames have their source line.

    TVM's decorators of scripts ask for all frames and read the line of the third. Below pytest
    there are some 60 frames; to look up their files takes 0.1 s a script, half of the collection,
    and to look for their modules among all that are imported as long again.
    """
    frames = []
    while frame is not None:
        name, line = frame.f_code.co_filename, frame.f_lineno
        lines = [linecache.getline(name, line)] if len(frames) < 4 else None
        index = None if lines is None else 0
        frames.append(inspect.FrameInfo(frame, name, line, frame.f_code.co_name, lines, index))
        frame = frame.f_back
    return frames


inspect.getouterframes = _outer_frames


def pytest_configure():
    """Let each of several processes that share the suite compute with its share of the machine."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        has_affinity = hasattr(os, "sched_getaffinity")
        count = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
        os.environ.setdefault("TVM_NUM_THREADS", str(max(count // processes, 1)))
        # Where a variable decides, TVM binds threads: those of all processes to the same core.
        os.environ.setdefault("TVM_BIND_THREADS", "0")


def pytest_collection():
    """Let the garbage collector not go through tests while they are made, some half a million."""
    gc.disable()


def pytest_collection_finish():
    """Collect garbage again, but that of tests alone: what is there now stays to the end.

    And less often: at Python's own thresholds a thirtieth of the time of the suite goes there.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    gc.enable()


def pytest_ignore_collect(collection_path, config):
    """With ``-m smoke``, read those files alone: to read them all takes half a minute."""
    if config.option.markexpr != "smoke" or not collection_path.name.startswith("test_"):
        return None
    return not is_smoke_file(collection_path.relative_to(TESTS).as_posix()) or None


def pytest_collection_modifyitems(items):
    """Mark what belongs to the smoke tests, and let what takes longest come first."""
    for item in items:
        if is_smoke(item.path.relative_to(TESTS).as_posix(), item.name):
            item.add_marker("smoke")
    items.sort(key=lambda item: not is_long(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Run a test, and the fixtures that it is the first to need, with the optimization it needs."""
    with optimization_of(item.path.relative_to(TESTS).as_posix()):
        return (yield)


@pytest.fixture(scope="session")
def python():
    """Runs programs in processes of their own that need not import graphgrad anew."""
    with forks("graphgrad") as running:
        yield running


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let tests that compile the same run in one process."""
    return ByGroup(config, log)
