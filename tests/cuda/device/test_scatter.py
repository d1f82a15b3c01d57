"""Scatters with many updates, which are ordered by their positions: the bits of the host's sums."""

from functools import cache

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from tests.cuda.device.running import Program
from tests.running import function

ROWS, COLUMNS, UPDATES = 11, 5, (8, 9)


def embedded(b, table, index):
    return b.emit(relax.op.take(table, index, axis=0, mode="fast"))


def of_the_middle(b, table, index):
    return b.emit(relax.op.take(table, index, axis=1, mode="clip"))


def scattered(reduction):
    def build(b, data, index, updates):
        return b.emit(relax.op.scatter_nd(data, index, updates, reduction))

    return build


FLAT = (np.prod(UPDATES),)
SCATTER = [((ROWS, 3, COLUMNS), "float32"), ((*FLAT, 2), "int64"), ((*FLAT, COLUMNS), "float32")]
CASES = {
    "rows": (embedded, [((ROWS, COLUMNS), "float32"), (UPDATES, "int64")]),
    "bfloat16": (embedded, [((ROWS, COLUMNS), "bfloat16"), (UPDATES, "int32")]),
    "middle": (of_the_middle, [((3, ROWS, COLUMNS), "float32"), (UPDATES, "int32")]),
    **{name: (scattered(name), SCATTER) for name in ("add", "update", "mul", "min")},
}
"""Functions and the types that they take; of "rows" and those behind it the gradients count."""


@cache
def program(name):
    build, types = CASES[name]
    mod = function(build, *((tuple(map(int, shape)), dtype) for shape, dtype in types))
    mod = gg.vjp(mod, "main")
    return mod["main_vjp"], Program(mod)


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_sums_is_that_of_the_host(name):
    func, running = program(name)
    generator = np.random.default_rng(0)
    arrays = []
    for param in func.params:
        shape, dtype = [int(n) for n in param.ty.shape], str(param.ty.dtype)
        if "int" in dtype:  # many are equal, some count from the end, and some point outside
            arrays.append(generator.integers(-ROWS - 2, ROWS + 2, shape, dtype) // 2)
        else:
            arrays.append(generator.uniform(-1, 1, shape).astype(dtype))
    on_host, on_device = running.run("main_vjp", *arrays)
    for expected, given in zip(on_host, on_device, strict=True):
        assert given.tobytes() == expected.tobytes()
    assert any(np.any(gradient) for gradient in on_device[1:])
