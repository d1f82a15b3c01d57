"""Programs made in several threads at once do not meet in what TVM keeps for all threads."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.compile_lock import COMPILE_LOCK
from tests.running import function

op = relax.op


def primal(channels):
    """Return a network of ops whose kernels TVM tags while it makes them."""

    def build(b, x, w):
        y = b.emit(op.nn.gelu(b.emit(op.nn.conv2d(x, w, padding=1))))
        y = b.emit(op.cumsum(b.emit(op.nn.avg_pool2d(y, (2, 2))), axis=2))
        return b.emit(op.sum(y))

    return function(build, ((1, channels, 8, 8), "float64"), ((4, channels, 3, 3), "float64"))


def gradients(mod):
    shapes = [[int(extent) for extent in param.ty.shape] for param in mod["main"].params]
    values = [to_tensor(np.random.default_rng(0).standard_normal(shape)) for shape in shapes]
    machine = relax.VirtualMachine(gg.compile(gg.vjp(mod)), tvm.cpu())
    return flat(machine["main_vjp"](*values, to_tensor(np.array(1.0))))


def test_gradients_made_in_threads_are_those_made_one_by_one(monkeypatch):
    monkeypatch.setenv("GRAPHGRAD_CACHE", "0")
    # TVM's own builder, which writes the primals, is for one thread at a time.
    programs = [primal(channels) for channels in range(1, 9)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(gradients, programs))
    for ours, program in zip(found, programs, strict=True):
        for value, expected in zip(ours, gradients(program), strict=True):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_is_not_forked_while_a_thread_lowers():
    held, done = threading.Event(), threading.Event()

    def lower():
        with COMPILE_LOCK:
            held.set()
            time.sleep(0.2)
            done.set()

    thread = threading.Thread(target=lower)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        os._exit(0 if done.is_set() and COMPILE_LOCK.acquire(blocking=False) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()
