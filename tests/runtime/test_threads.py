"""TVM's threads: how many, where they may run, who decides; each in a process of its own."""

import json
import os

import pytest

from graphgrad.runtime import threads
from graphgrad.runtime.cores import processors, usable_cores
from graphgrad.runtime.errors import InputError

PROGRAM = """
import contextlib, json, os, signal, sys, threading
import tvm_ffi
import graphgrad as gg
from graphgrad.runtime import threads
from graphgrad.runtime.errors import InputError

signal.alarm(100)  # what waits for threads that are not there waits for ever
configure = tvm_ffi.get_global_func("runtime.config_threadpool")
result = {}
"""

several = pytest.mark.skipif(len(processors()) < 2, reason="needs two processors")
linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")


@pytest.fixture
def run(python):
    """Run a program in a process where no variable says how many threads; return its result."""

    def run(body, **variables):
        environment = {k: v for k, v in os.environ.items() if k not in threads.VARIABLES}
        program = f"{PROGRAM}\n{body}\nprint(json.dumps(result))"
        done = python.run(program, environment=environment | variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


SEEN = """
def look():
    threads.prepare()
    result["others"] = threads.pool_size()

result["before"] = sorted(os.sched_getaffinity(0))
threads.prepare()
result["pool"] = threads.pool_size()
result["after"] = sorted(os.sched_getaffinity(0))
result["all"] = []
for thread in os.listdir("/proc/self/task"):
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        result["all"].append(sorted(os.sched_getaffinity(int(thread))))
other = threading.Thread(target=look)
other.start()
other.join()
threads.set_threads(1)
result["one"] = threads.pool_size(), gg.target("llvm").attrs["num-cores"]
threads.set_threads(None)
result["again"] = threads.pool_size()
"""


@linux
def test_a_thread_for_each_core_and_none_bound(run):
    seen = run(SEEN)
    cores = usable_cores()
    assert seen["pool"] == seen["others"] == seen["again"] == cores
    assert seen["before"] == seen["after"] == sorted(os.sched_getaffinity(0))
    assert all(allowed == seen["before"] for allowed in seen["all"])
    assert seen["one"] == [1, 1]


@several
@linux
def test_a_process_with_one_processor_has_one_thread(run):
    first = "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
    seen = run(first + SEEN)
    assert seen["pool"] == 1 and seen["after"] == seen["before"] == [min(processors())]


@several
@pytest.mark.parametrize("variable", threads.VARIABLES)
def test_the_environment_decides(run, variable):
    body = 'threads.prepare()\nresult["pool"] = threads.threads(), threads.pool_size()'
    assert run(body, **{variable: "1"})["pool"] == [1, 1]


@pytest.mark.parametrize("text, count", [("7", 7), (" 2,1", 2), ("0", 1), ("-4", 1), ("x", 1)])
def test_the_environment_is_read_as_tvm_does(monkeypatch, text, count):
    monkeypatch.setattr(threads, "_chosen", None)  # whatever another test has chosen
    monkeypatch.setenv("TVM_NUM_THREADS", text)
    assert threads.threads() == count


@several
def test_a_pool_that_somebody_made_is_left_alone(run):
    body = """
configure(-3, 1, ["0"])
threads.prepare()
result["smaller"] = threads.pool_size()

def larger():
    configure(-3, 5, ["0"] * 5)
    threads.prepare()
    result["larger"] = threads.pool_size()

other = threading.Thread(target=larger)
other.start()
other.join()
"""
    assert run(body) == {"smaller": 1, "larger": 5}


@several
@linux
def test_a_pool_that_cannot_grow(run):
    body = """
allowed = os.sched_getaffinity(0)
stock = threads.pool_size()  # TVM makes the pool, and binds this thread
os.sched_setaffinity(0, allowed)
try:
    threads.set_threads(stock + 1)
except InputError as error:
    result["error"] = str(error)
result["stock"], result["pool"] = stock, threads.pool_size()
"""
    seen = run(body)
    assert seen["pool"] == seen["stock"]
    assert f"was made with {seen['stock']}, and none can grow" in seen["error"]


def test_a_forked_process_computes_alone(run):
    body = """
import numpy as np
from graphgrad.models import mlp

threads.set_threads(min(2, len(threads.processors())))
step = gg.train_step(gg.from_onnx(mlp((64, 512, 8))))
x, y = np.ones((64, 64), "float32"), np.arange(64) % 8
step(x, y)
child = os.fork()
if child == 0:
    signal.alarm(60)
    threads.set_threads(None)  # which does not bring the threads back
    step(x, y)
    os._exit(0 if threads.pool_size() == 1 else 9)
result["status"] = os.waitpid(child, 0)[1]
step(x, y)
child = os.fork()
if child == 0:
    sys.exit(0)  # the pool is destroyed without its threads
result["exit"] = os.waitpid(child, 0)[1]
"""
    assert run(body) == {"status": 0, "exit": 0}


@pytest.mark.parametrize("count", [0, -1, 1.0, True, "2", len(processors()) + 1])
def test_numbers_that_are_refused(count):
    with pytest.raises(InputError, match="threads="):
        threads.set_threads(count)
    assert threads._chosen is None


@pytest.mark.parametrize("name", ["14MaxConcurrencyEv", "17SetMaxConcurrencyEi"])
def test_functions_that_tvm_does_not_register(name):
    assert threads._function(f"_ZN3tvm7runtime9threading{name}") is not None
