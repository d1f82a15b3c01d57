"""What is recognized as a way to put two parts of a reduction together."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.cuda.combiner import combiner
from graphgrad.ops.elementwise import larger, smaller

F32 = "float32"


def first_largest(a, b):
    """Keep the position and the value of the largest, the first of equal ones."""
    keep = tirx.any(a[1] > b[1], tirx.all(a[1] == b[1], a[0] < b[0]))
    return tirx.Select(keep, a[0], b[0]), tirx.Select(keep, a[1], b[1])


def found(combine, start, terms):
    """Return the combiner of a reduction by TE, or None, and the number of its results."""
    x = te.placeholder((8,), F32, "x")
    k = te.reduce_axis((0, 8), "k")
    reduce = te.comm_reducer(combine, start, name="reduce")
    results = te.compute((1,), lambda _: reduce(terms(x, k), axis=k), name="y")
    results = results if isinstance(results, list | tuple) else [results]
    func = te.create_prim_func([x, *results])
    (stage,) = stages(func)
    block = func.body.block.body
    while not isinstance(block, tvm.s_tir.SBlockRealize):
        block = block.body
    init = block.block.init
    starts = [s.value for s in (init.seq if isinstance(init, tirx.SeqStmt) else [init])]
    bound = [s.value for s in getattr(block.block.body, "seq", []) if isinstance(s, tirx.Bind)]
    values = bound or [store.value for store in stage.stores]
    return combiner(values, stage.stores, starts)


def single(combine, start, term=lambda x, k: x[k]):
    return found(combine, lambda ty: tirx.const(start, ty), term)


def apply(combine, left, right):
    """Return the combination of two lists of numbers."""
    analyzer = tvm.sym.Analyzer()
    constants = [
        [tirx.const(v, F32 if isinstance(v, float) else "int32") for v in side]
        for side in (left, right)
    ]
    return [analyzer.simplify(value).value for value in combine(*constants)]


@pytest.mark.parametrize(
    ("combine", "start", "expected"),
    [
        (lambda a, b: a + b, 0.0, 5.0),
        (lambda a, b: a * b, 1.0, 6.0),
        (lambda a, b: tirx.max(b, a), -9.0, 3.0),
        (lambda a, b: tirx.min(b, a), 9.0, 2.0),
        (larger, float("-inf"), 3.0),
        (smaller, float("inf"), 2.0),
    ],
    ids=["sum", "product", "max", "min", "larger", "smaller"],
)
@pytest.mark.parametrize(
    "term", [lambda x, k: x[k], lambda x, k: x[k] * x[k]], ids=["plain", "square"]
)
def test_recognized(combine, start, expected, term):
    assert apply(single(combine, start, term), [2.0], [3.0]) == [expected]


def test_tuples():
    both = found(
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
        lambda s, t: (tirx.const(0, s), tirx.const(0, t)),
        lambda x, k: (x[k], x[k] * x[k]),
    )
    assert apply(both, [1.0, 2.0], [3.0, 5.0]) == [4.0, 7.0]


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([1, 2.0], [5, 3.0], [5, 3.0]),
        ([1, 3.0], [5, 2.0], [1, 3.0]),
        ([1, 2.0], [5, 2.0], [1, 2.0]),
        ([5, 2.0], [1, 2.0], [1, 2.0]),
    ],
)
def test_index_of_the_largest(left, right, expected):
    combine = found(
        first_largest,
        lambda s, t: (tirx.const(-1, s), tirx.min_value(t)),
        lambda x, k: (k, x[k]),
    )
    assert apply(combine, left, right) == expected


@pytest.mark.parametrize(
    ("combine", "start"),
    [
        (lambda a, b: a + b, 1.0),  # each part would start at one
        (lambda a, b: a + b + a * b, 0.0),
        (lambda a, b: a + b * 2.0 + tirx.exp(a), 0.0),
        (lambda a, b: tirx.Select(b > 0.0, b, a), 0.0),
        (lambda a, b: tirx.Select(b > a, b, a * 0.5), 0.0),
        (lambda a, b: a - b, 0.0),
    ],
    ids=["start", "two terms", "exp", "last", "decay", "difference"],
)
def test_not_recognized(combine, start):
    assert single(combine, start) is None


def test_nan_is_kept_by_either_part():
    combine = single(larger, float("-inf"))
    value = combine([tirx.const(np.nan, F32)], [tirx.const(1.0, F32)])[0]
    func = te.create_prim_func([te.compute((1,), lambda _: value, name="y")])
    out = tvm.runtime.tensor(np.zeros(1, F32))
    tvm.compile(func, target="llvm")(out)
    assert np.isnan(out.numpy()).all()
