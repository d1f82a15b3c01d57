"""Loops over time: the host queues the launches of each step."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import graphgrad as gg
from graphgrad.ir.visits import nodes_in
from graphgrad.lower.cuda.rules import scheduling_rules
from graphgrad.lower.cuda.schedule import schedule_function
from graphgrad.lower.pipeline import lower
from tests.lower.cuda.sources import TARGET, whole_source
from tests.running import function

STEPS, BATCH, WIDTH = 6, 64, 64


def recurrence(builder, x, weights, start):
    def step(h, row):
        h = relax.op.tanh(relax.op.add(row, relax.op.matmul(h, weights)))
        return h, h

    return gg.scan(step, start, x)[1]


def module(dtype="float32"):
    shapes = (STEPS, BATCH, WIDTH), (WIDTH, WIDTH), (BATCH, WIDTH)
    return gg.vjp(function(recurrence, *((shape, dtype) for shape in shapes)), "main")


def is_launch(loop):
    binding = loop.thread_binding
    return binding is not None and binding.thread_tag == "blockIdx.x"


@pytest.fixture(scope="module")
def loops():
    """The kernels with loops of the host around launches."""
    kernels = []
    lowered = lower(module(), TARGET, kernels)
    names = [kernel.name for kernel in kernels if kernel.rule == "steps"]
    assert {kernel.rule for kernel in kernels}.isdisjoint({"serial", "parallel"})
    return [lowered[name] for name in names]


def test_forward_and_backward_are_loops_of_the_host(loops):
    assert len(loops) == 2
    for func in loops:
        (host,) = [
            loop
            for loop in nodes_in(func.body, tirx.For)
            if loop.thread_binding is None and any(map(is_launch, nodes_in(loop.body, tirx.For)))
        ]
        assert int(host.extent) == STEPS
        launches = [loop for loop in nodes_in(host.body, tirx.For) if is_launch(loop)]
        assert 1 <= len(launches) <= 2


def test_every_launch_has_as_many_threads_as_elements(loops):
    for func in loops:
        for launch in filter(is_launch, nodes_in(func.body, tirx.For)):
            threads = [
                int(loop.extent)
                for loop in nodes_in(launch.body, tirx.For)
                if loop.thread_binding is not None
            ]
            assert int(launch.extent) * np.prod(threads) >= BATCH * WIDTH / 16


def test_products_of_steps_are_on_tensor_cores():
    source = whole_source(module("bfloat16"))
    kernels = source.split("__global__")
    assert sum("graphgrad_mma" in kernel and "scan" in kernel for kernel in kernels) >= 2


def test_what_is_no_loop_over_time_is_left_to_other_rules():
    x = tvm.te.placeholder((8,), "float32", name="x")
    func = tvm.te.create_prim_func([x, tvm.te.compute((8,), lambda i: x[i] + 1)])
    (rule,) = [rule for rule in scheduling_rules() if rule.name == "steps"]
    scheduled, kernel = schedule_function("main", func, TARGET, [rule])
    assert scheduled is None
    assert kernel.refused == [("steps", "another structure")]
