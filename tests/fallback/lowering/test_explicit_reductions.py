"""Reductions with conditions, starts and empty ranges, compiled, against the interpreter."""

import itertools

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from graphgrad.fallback import create_prim_func
from graphgrad.fallback.lowering.explicit_reductions import spell_out_reduction
from graphgrad.fallback.walk import called
from tests.fallback.interpreter import evaluate
from tests.fallback.running import executable, run, unwritten

X = te.placeholder((4, 4), "float32", name="x")
Z = te.placeholder((4,), "float32", name="z")
FLAGS = te.placeholder((4,), "int32", name="flags")
GENERATOR = np.random.default_rng(0)
KNOWN = [
    (X, GENERATOR.uniform(-2, 2, (4, 4)).astype("float32")),
    (Z, GENERATOR.uniform(-2, 2, 4).astype("float32")),
    (FLAGS, np.array([0, 1, 1, 0], "int32")),
]
INPUTS = [tensor for tensor, _ in KNOWN]
ARRAYS = [array for _, array in KNOWN]

N, M = te.var("n", "int64"), te.var("m", "int64")
GRID = te.placeholder((N, M), "float32", name="grid")
VECTOR = te.placeholder((M,), "float32", name="vector")


def _product():
    return te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="product")


def _affine():
    """Composition of maps x → a·x + b: the order counts."""
    return te.comm_reducer(
        lambda f, g: (f[0] * g[0], f[1] * g[0] + g[1]),
        lambda s, t: (tirx.const(1, s), tirx.const(0, t)),
        name="affine",
    )


def _argmax():
    def better(a, b):
        return tirx.any(a[1] > b[1], tirx.all(tirx.EQ(a[1], b[1]), a[0] < b[0]))

    return te.comm_reducer(
        lambda a, b: tuple(tirx.Select(better(a, b), x, y) for x, y in zip(a, b, strict=True)),
        lambda s, t: (tirx.const(2**31 - 1, s), te.min_value(t)),
        name="argmax",
    )


REDUCERS = {
    "sum": (lambda: te.sum, lambda i, k: X[i, k]),
    "max": (lambda: te.max, lambda i, k: X[i, k]),
    "min": (lambda: te.min, lambda i, k: X[i, k]),
    "product": (_product, lambda i, k: X[i, k]),
    "affine": (_affine, lambda i, k: (X(i, k), X[i, k] + 1.0)),
    "argmax": (_argmax, lambda i, k: (tirx.Cast("int32", k.var), X(i, k))),
}
STARTS = {
    "no start": None,
    "constant": lambda i, index: tirx.const(1, "int32") if index else tirx.const(1.5),
    "load": lambda i, index: FLAGS(i) if index else Z(i),
}
CONDITIONS = {
    "all": None,
    "where": lambda i, k: tirx.all(k <= i, X[i, k] > -1.0),
}
EXTENTS = {"four": lambda i: 4, "none": lambda i: 0, "triangle": lambda i: i}


def reduction(reducer, start="no start", condition="all", extent="four"):
    """Return the outputs of a reduction over each row of `X`."""
    combiner, source = REDUCERS[reducer]
    options = {}

    def body(i):
        k = te.reduce_axis((0, EXTENTS[extent](i)), "k")
        if STARTS[start] is not None:
            dtypes = ["int32", "float32"] if reducer == "argmax" else ["float32"]
            values = tuple(STARTS[start](i, dtype == "int32") for dtype in dtypes)
            values = values * 2 if reducer == "affine" else values
            options["init"] = values if len(values) > 1 else values[0]
        if CONDITIONS[condition] is not None:
            options["where"] = CONDITIONS[condition](i, k)
        result = combiner()(source(i, k), axis=k, **options)
        return tuple(result) if reducer in ("affine", "argmax") else result

    outputs = te.compute((4,), body, name="y")
    return [outputs] if isinstance(outputs, te.Tensor) else list(outputs)


def compiled(outputs, create=create_prim_func):
    """Return the values of outputs, computed in memory that holds NaN."""
    func = create([*INPUTS, *outputs])
    return run(func, *ARRAYS, *unwritten(*outputs))[len(INPUTS) :]


@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("start", STARTS)
def test_reductions_agree_with_the_interpreter(reducer, start):
    outputs = [
        tensor
        for condition, extent in itertools.product(CONDITIONS, EXTENTS)
        for tensor in reduction(reducer, start, condition, extent)
    ]
    for given, expected in zip(compiled(outputs), evaluate(outputs, KNOWN), strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("combiner", "infinity"), [(te.max, -np.inf), (te.min, np.inf)], ids=["max", "min"]
)
def test_an_infinite_start_is_the_start(combiner, infinity):
    k, j = te.reduce_axis((0, 4), "k"), te.reduce_axis((0, M), "j")
    start = tirx.const(infinity)
    never = te.compute((4,), lambda i: combiner(X[i, k], axis=k, where=k > 9, init=start))
    over_none = te.compute((1,), lambda _: combiner(VECTOR[j], axis=j, init=start))
    func = create_prim_func([X, VECTOR, never, over_none])
    outputs = run(func, ARRAYS[0], np.zeros(0, "float32"), *unwritten(never, over_none))
    assert all((output == infinity).all() for output in outputs[2:])


def test_components_in_any_order_and_number():
    def body(i, chosen):
        k = te.reduce_axis((0, 4), "k")
        found = _argmax()(REDUCERS["argmax"][1](i, k), axis=k)
        return tuple(found[c] for c in chosen) if len(chosen) > 1 else found[chosen[0]]

    position, value = ARRAYS[0].argmax(1), ARRAYS[0].max(1)
    swapped = te.compute((4,), lambda i: body(i, (1, 0)))
    only = te.compute((4,), lambda i: body(i, (1,)))
    for given, expected in zip(compiled([*swapped, only]), [value, position, value], strict=True):
        np.testing.assert_array_equal(given, expected)


def total(*bounds):
    """Return the sum of `GRID` between bounds, or over the elements of a row."""
    axes = [te.reduce_axis(bound, name) for bound, name in zip(bounds, "kl", strict=False)]
    if len(axes) == 2:
        return te.compute((), lambda: te.sum(GRID[axes[0], axes[1]], axis=axes))
    return te.compute((M,), lambda j: te.sum(GRID[axes[0], j], axis=axes))


@pytest.mark.parametrize(
    ("output", "rows", "columns"),
    [
        (total((0, N), (0, M)), slice(None), slice(None)),
        (total((0, N)), slice(None), None),
        (total((2, N)), slice(2, None), None),
        (total((2, N), (1, M)), slice(2, None), slice(1, None)),
    ],
    ids=["both", "rows", "from 2", "both from within"],
)
def test_symbolic_ranges_that_are_empty_at_run_time(output, rows, columns):
    func = create_prim_func([GRID, output])
    call = executable(func)
    for n, m in itertools.product((0, 1, 2, 5), (0, 1, 3)):
        grid = GENERATOR.uniform(-1, 1, (n, m)).astype("float32")
        _, given = call(grid, *unwritten(output, m=m))
        expected = grid[rows].sum(0) if columns is None else grid[rows, columns].sum()
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-6)


def test_a_symbolic_contraction_stays_plain():
    """A guard inside would keep it from being scheduled as one."""
    k = te.reduce_axis((0, N), "k")
    output = te.compute((M, M), lambda i, j: te.sum(GRID[k, i] * GRID[k, j], axis=k))
    (complete,) = spell_out_reduction(output.op)
    (contraction,) = complete.op.input_tensors
    tvm.ir.assert_structural_equal(contraction.op.body[0], output.op.body[0])


POINTERS = te.placeholder((N,), "int32", name="pointers")


def segments(i):
    k = te.reduce_axis((POINTERS[i], POINTERS[i + 1]), "k")
    return te.sum(VECTOR[k], axis=k)


def all_segments():
    i = te.reduce_axis((0, N - 1), "i")
    k = te.reduce_axis((POINTERS[i], POINTERS[i + 1]), "k")
    return te.sum(VECTOR[k], axis=[i, k], where=VECTOR[k] > 0)


@pytest.mark.parametrize("pointers", [[0, 2, 2, 4, 9, 9], [3, 3], [4]], ids=str)
def test_ranges_that_depend_on_data(pointers):
    """Where there is no segment, no bound of one is read."""
    lengths = te.compute((N - 1,), segments, name="lengths")
    over_all = te.compute((), all_segments, name="over_all")
    func = create_prim_func([POINTERS, VECTOR, lengths, over_all])
    vector = np.linspace(-1, 1, 9).astype("float32")
    outputs = [np.full(len(pointers) - 1, np.nan, "float32"), np.full((), np.nan, "float32")]
    *_, given, given_all = run(func, np.array(pointers, "int32"), vector, *outputs)
    parts = [vector[a:b] for a, b in itertools.pairwise(pointers)]
    np.testing.assert_allclose(given, [part.sum() for part in parts], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(given_all, sum(part[part > 0].sum() for part in parts), rtol=1e-6)


def test_bounds_are_not_read_where_there_is_no_loop():
    """Elements further than memory goes: to read there is to crash, unless LLVM sees a way out."""
    start = te.var("start", "int64")

    def body():
        i = te.reduce_axis((start, N - 1), "i")
        k = te.reduce_axis((POINTERS[i], POINTERS[i + 1]), "k")
        return te.sum(VECTOR[k], axis=[i, k])

    output = te.compute((), body)
    (rewritten,) = spell_out_reduction(output.op)
    inner = rewritten.op.reduce_axis[1].dom
    assert called(inner.min) == called(inner.extent) == "prim.if_then_else"
    call = executable(create_prim_func([POINTERS, VECTOR, start, output]))
    vector = np.ones(5, "float32")
    for first, expected in ((1, 3), (3, 0), (10**9, 0)):
        *_, given = call(np.array([0, 2, 2, 5], "int32"), vector, first, *unwritten(output))
        assert given == expected


def test_bounds_may_depend_on_a_rewritten_tensor():
    k = te.reduce_axis((0, 4), "k")
    counts = te.compute((4,), lambda i: te.sum(FLAGS[k], axis=k, where=k < i), name="counts")

    def body(i):
        j = te.reduce_axis((0, counts[i]), "j")
        return te.sum(X[i, j], axis=j)

    output = te.compute((4,), body, name="y")
    x, flags = ARRAYS[0], ARRAYS[2]
    expected = [x[i, : flags[:i].sum()].sum() for i in range(4)]
    np.testing.assert_allclose(compiled([output])[0], expected, rtol=1e-6)
    text = str(create_prim_func([*INPUTS, output]))
    assert text.count('T.sblock("counts') == 1


def test_an_inner_range_is_guarded_by_an_outer_one():
    """All in one: rows up to i, columns up to the row, both empty for some."""

    def body(i):
        k = te.reduce_axis((0, i), "k")
        j = te.reduce_axis((0, k.var), "j")
        return te.sum(X[k, j], axis=[k, j], init=Z[i])

    output = te.compute((4,), body)
    (given,) = compiled([output])
    x, z = ARRAYS[:2]
    expected = [z[i] + sum(x[k, :k].sum() for k in range(i)) for i in range(4)]
    np.testing.assert_allclose(given, expected, rtol=1e-6)


def _matmul(n):
    a, b = (te.placeholder((n, n), "float32", name=name) for name in "ab")
    k = te.reduce_axis((0, n), "k")
    return te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))


def _ranged(bounds):
    def body(i):
        k = te.reduce_axis(bounds(i), "k")
        return te.sum(X[i, k], axis=k)

    return te.compute((4,), body)


@pytest.mark.parametrize(
    "output",
    [
        _matmul(8),
        _matmul(N),
        _ranged(lambda i: (0, i + 1)),
        _ranged(lambda i: (i, 4)),
        reduction("argmax")[0],
    ],
    ids=["static", "symbolic square", "up to the diagonal", "from the diagonal", "tuple"],
)
def test_what_is_never_empty_stays_as_it_is(output):
    assert spell_out_reduction(output.op) is None


def test_a_start_from_the_identity_is_dropped():
    k = te.reduce_axis((0, 4), "k")
    plain = te.compute((4,), lambda i: te.sum(X[i, k], axis=k), name="y")
    started = te.compute((4,), lambda i: te.sum(X[i, k], axis=k, init=0.0), name="y")
    tvm.ir.assert_structural_equal(create_prim_func([X, plain]), create_prim_func([X, started]))
