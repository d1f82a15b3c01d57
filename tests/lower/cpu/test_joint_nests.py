"""Neighboring nests of maps: joined where neither stores what the other accesses."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.lower.cpu.joint_nests import join_nests
from graphgrad.lower.cpu.vector_math import vectorize_math
from tests.lower.kernel_programs import run, tensor


def nests(outputs, inputs, **given):
    """Run maps as built, and scheduled, joined and written out; with the count of nests."""
    counts = []

    def joined(func):
        func = join_nests(func)
        counts.append(func.script().count("T.parallel"))
        return vectorize_math(func)

    runs = run(inputs, outputs, then=joined, **given)
    runs.agree()
    return runs, counts[0]


def test_equal_functions_are_computed_once():
    x, y = tensor(64, 256), tensor(64, 256, name="y")
    first = te.compute(x.shape, lambda i, j: te.exp(x[i, j] - y[i, j]) * 2.0, "first")
    second = te.compute(x.shape, lambda i, j: y[i, j] / te.exp(x[i, j] - y[i, j]), "second")
    runs, count = nests([first, second], [x, y])
    assert count == 1 and "T.exp" not in runs.text
    assert runs.text.count("T.float32(1.4426950408889634)") == 1


@pytest.mark.parametrize("kind", ["reads", "no function", "other function", "other points"])
def test_what_shares_nothing_or_depends_stays(kind):
    x = tensor(64, 256)
    first = te.compute(x.shape, lambda i, j: te.exp(x[i, j]), "first")
    element = {
        "reads": lambda i, j: te.exp(first[i, 255 - j]),
        "no function": lambda i, j: x[i, j] * 2.0,
        "other function": lambda i, j: te.tanh(x[i, j]),
        "other points": lambda i, j: te.exp(x[i // 2, j]),
    }[kind]
    shape = [tirx.IntImm("int64", n) for n in (128, 256)] if kind == "other points" else x.shape
    _, count = nests([first, te.compute(shape, element, "second")], [x])
    assert count == 2


def _map(a, b, function, flips, name):
    def element(i, j):
        return function(0.3 * a[i, j]) * b[63 - i if flips else i, j] * 0.5

    return te.compute(a.shape, element, name)


@pytest.mark.parametrize("seed", range(12))
def test_random_maps(seed):
    """Sequences of maps of each other: some shifted, some in place of an argument's reader."""
    random = np.random.default_rng(seed)
    tensors = [tensor(64, 256), tensor(64, 256, name="y")]
    outputs = []
    for number in range(4):
        a, b = (tensors[k] for k in random.integers(0, len(tensors), 2))
        function = (te.exp, te.tanh, te.sigmoid)[random.integers(0, 3)]
        flips = bool(random.integers(0, 2))

        outputs.append(_map(a, b, function, flips, f"map{number}"))
        tensors.append(outputs[-1])
    nests(outputs, tensors[:2])
