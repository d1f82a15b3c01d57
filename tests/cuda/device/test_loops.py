"""Loops over time, of which each step is some launches, with their gradients."""

from functools import cache

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from tests.cuda.device.running import Program
from tests.running import function

STEPS, BATCH, WIDTH = 5, 4, 12
op = relax.op


def part(gates, number):
    return op.strided_slice(gates, [1], [number * WIDTH], [(number + 1) * WIDTH])


def lstm(_, x, weights, start):
    """Two carries, of gates that are parts of a product."""

    def step(carry, row):
        h, c = carry
        gates = op.add(row, op.matmul(h, weights))
        i, o, f, u = (part(gates, number) for number in range(4))
        c = op.add(op.multiply(op.sigmoid(f), c), op.multiply(op.sigmoid(i), op.tanh(u)))
        h = op.multiply(op.sigmoid(o), op.tanh(c))
        return [h, c], h

    return gg.scan(step, [start, start], x)[1]


def normalized(_, x, weights, start):
    """A softmax in each step, whose rows are reduced, and a result that is no carry."""

    def step(h, row):
        products = op.matmul(h, part(weights, 0))
        h = op.nn.softmax(op.add(part(row, 0), products), -1)
        return h, op.sum(op.multiply(h, part(row, 1)), -1)

    return gg.scan(step, start, x)[1]


def nested(_, x, weights, start):
    """A loop in each step, over parts of a row, which starts with the carry and reads it."""

    def step(h, row):
        def inner(c, part):
            c = op.tanh(op.add(op.multiply(part, c), h))
            return c, c

        parts = op.permute_dims(op.reshape(row, (BATCH, 4, WIDTH)), [1, 0, 2])
        c, states = gg.scan(inner, op.matmul(h, part(weights, 0)), parts)
        return c, op.sum(states, 0)

    return gg.scan(step, start, x)[1]


LOOPS = {"lstm": lstm, "normalized": normalized, "nested": nested}


@cache
def gradients(name, dtype):
    shapes = (STEPS, BATCH, 4 * WIDTH), (WIDTH, 4 * WIDTH), (BATCH, WIDTH)
    mod = gg.vjp(function(LOOPS[name], *((shape, dtype) for shape in shapes)), "main")
    return mod["main_vjp"], Program(mod)


@pytest.mark.parametrize(
    "name, dtype",
    [(name, dtype) for name in ("lstm", "normalized") for dtype in ("float32", "bfloat16")]
    + [("nested", "float32")],
)
def test_values_and_gradients(name, dtype):
    loop, program = gradients(name, dtype)
    generator = np.random.default_rng(0)
    shapes = [[int(n) for n in param.ty.shape] for param in loop.params]
    arrays = [generator.uniform(-1, 1, shape).astype(dtype) for shape in shapes]
    assert all(np.any(result) for result in program.check("main_vjp", *arrays))
