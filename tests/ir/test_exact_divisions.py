"""Divisions in indices: the values that they have, through TVM's computation of addresses."""

import random

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, te

import graphgrad as gg
from graphgrad.ir.exact_divisions import write_exact_divisions
from tests.labels import label
from tests.running import compile_library

VALUES = np.arange(12, dtype="float32")

INDICES = [
    lambda i, k: (5 - i) // 2,
    lambda i, k: (1 - i) % 3,
    lambda i, k: (2 - i * 2) % 4,
    lambda i, k: (5 - i % 6) // 2,
    lambda i, k: (i + 1) % -3 + 3,
    lambda i, k: (i + 1) // -3 + 4,
    lambda i, k: (2 - i + k) % 3,
    lambda i, k: ((7 - i) % 6) // 4,
    lambda i, k: (i * 3 - i + 1 - i * 3) % 3,
    lambda i, k: (i * -2 // 2 + 2) % 5,
    lambda i, k: (i + 2) % 3 * 3 + (i * -2) % 3,
    lambda i, k: i % 2 + (i - 1) % 2 * 2,
    lambda i, k: i // 2 * 2 + (i + 3) // 2,
    lambda i, k: ((i + 2) // 4 + 1) % 2 * 5,
    lambda i, k: (i % 4 - 1) // 4 + 1,
    lambda i, k: i + 5 - (i + 1) % 2 * 2,
]

OPAQUE = "RShift"
"""What an index is shifted with that is hidden from TVM."""


def run(change, index):
    x = te.placeholder((12,), "float32", name="x")
    y = te.compute((6, 1), lambda i, k: x[index(i, k)], name="y")
    result = tvm.runtime.tensor(np.full((6, 1), np.nan, "float32"))
    compile_library(change(te.create_prim_func([x, y])))(tvm.runtime.tensor(VALUES), result)
    return result.numpy()[:, 0]


@pytest.mark.parametrize("index", INDICES, ids=range(len(INDICES)))
def test_indices(index):
    expected = [VALUES[index(i, 0)] for i in range(6)]
    np.testing.assert_array_equal(run(write_exact_divisions, index), expected)


@pytest.mark.parametrize(
    "index",
    [
        lambda i, k: (i + 1) // 2,
        lambda i, k: (5 - i) // 2,
        lambda i, k: i // 3 * 3 + i % 3,
        lambda i, k: (i + 1) // 3 * 3 + (i + 1) % 3,
    ],
    ids=range(4),
)
def test_what_tvm_simplifies_rightly_is_left_to_it(index):
    x = te.placeholder((12,), "float32", name="x")
    y = te.compute((6, 1), lambda i, k: x[index(i, k)], name="y")
    assert OPAQUE not in write_exact_divisions(te.create_prim_func([x, y])).script()


def test_indices_of_fused_loops():
    """A remainder appears where a loop is fused: (f % 4 - 1) // 4 of what was (j - 1) // 4."""
    x = te.placeholder((12,), "float32", name="x")
    y = te.compute((4, 4), lambda i, j: x[(j - 1) // 4 + 1], name="y")
    schedule = s_tir.Schedule(te.create_prim_func([x, y]))
    schedule.fuse(*schedule.get_loops(schedule.get_sblock("y")))
    func = write_exact_divisions(schedule.mod["main"])
    result = tvm.runtime.tensor(np.full((4, 4), np.nan, "float32"))
    compile_library(func)(tvm.runtime.tensor(VALUES), result)
    np.testing.assert_array_equal(result.numpy(), [[0, 1, 1, 1]] * 4)


def random_affine(choice, variables, parts):
    """Return a sum of variables, or divisions of such sums, and an offset."""
    terms = [
        (random_division(choice, variables, parts - 1) if choice.random() < 0.4 else variable)
        * choice.choice([1, 1, 2, 3, -1, -2])
        for variable in choice.sample(variables, choice.randint(1, len(variables)))
    ]
    return sum(terms, choice.choice([0, 0, choice.randint(-4, 5)]))


def random_division(choice, variables, parts):
    dividend = random_affine(choice, variables, parts) if parts else choice.choice(variables) + 1
    divisor = choice.choice([2, 3, 4, 6])
    return dividend // divisor if choice.random() < 0.5 else dividend % divisor


def random_index(seed):
    """Return extents of loops, and an index that can be computed of integers and expressions."""
    choice = random.Random(seed)
    extents = [choice.choice([1, 2, 3, 4, 6, 8]) for _ in range(choice.randint(1, 2))]
    structure = choice.getrandbits(32)

    def index(*variables):
        again = random.Random(structure)
        count = again.randint(1, 3)
        return sum(
            random_division(again, list(variables), 2) * again.choice([1, 2, 3, 6])
            for _ in range(count)
        )

    return extents, index


def random_read(seed):
    """Return a tensor, a stage that reads it at a random index, and where that is."""
    extents, index = random_index(seed)
    points = np.array([index(*map(int, point)) for point in np.ndindex(*extents)])
    low = int(points.min())
    x = te.placeholder((int(points.max()) - low + 1,), "int32", name="x")
    y = te.compute(extents, lambda *point: x[index(*point) - low], name="y")
    return x, y, (points - low).reshape(extents)


def right_reads(change, seeds):
    """Return for each random index whether a kernel reads where Python's integers say."""
    reads = [random_read(seed) for seed in seeds]
    functions = {
        f"read_{seed}": change(te.create_prim_func([x, y])).with_attr(
            "global_symbol", f"read_{seed}"
        )
        for seed, (x, y, _) in zip(seeds, reads, strict=True)
    }
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    module = tvm.compile(tvm.IRModule(functions), target).mod
    right = []
    for name, (x, _, points) in zip(functions, reads, strict=True):
        result = tvm.runtime.tensor(np.full(points.shape, -1, "int32"))
        module[name](tvm.runtime.tensor(np.arange(int(x.shape[0]), dtype="int32")), result)
        right.append(np.array_equal(result.numpy(), points))
    return right


def test_random_indices():
    assert all(right_reads(write_exact_divisions, range(150)))


def test_tvm_itself_gets_some_of_them_wrong():
    assert not all(right_reads(lambda func: func, range(150)))


@pytest.mark.parametrize("repeated", [relax.op.repeat, relax.op.tile], ids=label)
def test_flips_of_what_is_repeated(repeated):
    """Their indices meet when one is computed inside the other."""
    is_tile = repeated is relax.op.tile
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(repeated(x, [2]) if is_tile else repeated(x, 2, 0))
        builder.emit_func_output(builder.emit(relax.op.flip(y, 0)))
    machine = relax.VirtualMachine(gg.compile(builder.get(), gg.target("llvm")), tvm.cpu())
    given = machine["main"](tvm.runtime.tensor(VALUES[:3])).numpy()
    again = np.tile(VALUES[:3], 2) if is_tile else np.repeat(VALUES[:3], 2)
    np.testing.assert_array_equal(given, again[::-1])
