"""Ctrl-C while a program is compiled is a KeyboardInterrupt, and leaves nothing behind."""

import inspect
import signal
import sys
import threading
import time

import numpy as np
import pytest
import tvm_ffi

import graphgrad as gg
from graphgrad.lower.codegen.thread_pool import map_in_threads
from tests.frontend.graphs import random
from tests.train.nets import perceptron

POINTS = 14
MOST_ATTEMPTS = 3


def loss_of_a_new_step():
    step = gg.train_step(perceptron(), optimizer=gg.optim.SGD(0.1))
    return float(step(random(4, 4), np.arange(4) % 3))


class Profiled:
    """Counts the calls of Python functions in the block; one of number `end` or later raises."""

    def __init__(self, end=-1, error=KeyboardInterrupt):
        self.calls, self._end, self._error = 0, end, error

    def __enter__(self):
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _on_event(self, frame, event, argument):
        if event != "call":
            return
        self.calls += 1
        # What is raised while a generator is closed is lost in Python: the next call has to do.
        is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR
        if 0 <= self._end <= self.calls and not is_generator:
            raise self._error


@pytest.fixture(scope="module")
def compiled():
    """The loss of the first call, and how many calls of Python functions it takes."""
    expected = loss_of_a_new_step()
    with Profiled() as profiled:
        loss_of_a_new_step()
    return expected, profiled.calls


@pytest.mark.parametrize("point", range(POINTS))
def test_an_interrupt_anywhere(compiled, point):
    expected, calls = compiled
    with pytest.raises(KeyboardInterrupt), Profiled(calls * (2 * point + 1) // (2 * POINTS)):
        loss_of_a_new_step()
    if point % 5 == 0:
        assert loss_of_a_new_step() == expected  # the process is as good as before


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers of POSIX systems")
@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.8])
def test_a_signal(compiled, fraction):
    """Wherever it arrives, it is what its handler raises, or comes too late."""
    start = time.perf_counter()
    loss_of_a_new_step()
    duration = time.perf_counter() - start
    arrived = []

    def interrupt(*_):
        arrived.append(None)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for attempt in range(1, MOST_ATTEMPTS + 1):
            signal.setitimer(signal.ITIMER_REAL, duration * fraction)
            # Python drops what is raised in a finalizer: then none would ever come again.
            while len(arrived) < attempt:
                loss_of_a_new_step()
        pytest.fail(f"{MOST_ATTEMPTS} interrupts were lost")
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("code", [0, 3, None, "why"])
def test_an_exit_keeps_its_code(code):
    with pytest.raises(SystemExit) as raised:
        tvm_ffi.convert(lambda: sys.exit(code))()
    assert raised.value.code == code


def test_an_error_waits_for_no_other_thread():
    """What has begun is left to itself, what has not is canceled."""
    may_end, begun = threading.Event(), []

    def work(item):
        begun.append(item)
        if item == 0:
            raise KeyboardInterrupt
        may_end.wait(60)

    try:
        with pytest.raises(KeyboardInterrupt):
            map_in_threads(work, list(range(20)), most=2)
        assert not may_end.is_set() and len(begun) < 20
    finally:
        may_end.set()
