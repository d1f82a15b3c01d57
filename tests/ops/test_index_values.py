"""Gathers and scatters against NumPy: any dtype, repeated indices, and indices outside."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.ir.arrays import to_tensor
from tests.running import function, run

op = relax.op
X = np.arange(12.0).reshape(3, 4)
NAN = np.nan


def program(build, *arrays):
    types = [(array.shape, str(array.dtype)) for array in arrays]
    return function(lambda builder, *x: builder.emit(build(*x)), *types)


def computed(build, *arrays):
    return run(program(build, *arrays), "main", *arrays)[0]


def integers(*values, dtype="int64"):
    return np.array(values, dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "bool"])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_take_in_every_dtype(dtype, index):
    x = (X % 2).astype(dtype)
    rows = integers(2, -1, 0, dtype=index)
    given = computed(lambda x, i: op.take(x, i, axis=0), x, rows)
    np.testing.assert_array_equal(given, x[rows])
    assert given.dtype == x.dtype


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("fast", [NAN, 0, 3, NAN, NAN]),
        ("nan", [NAN, NAN, NAN, NAN, NAN]),
        ("wrap", [3, 0, 3, 0, 1]),
        ("clip", [0, 0, 0, 3, 3]),
    ],
)
def test_take_at_indices_that_point_outside(mode, expected):
    index = integers(-5, -4, -1, 4, 10**12 + 1)
    given = computed(lambda x, i: op.take(x, i, axis=1, mode=mode), X, index)
    np.testing.assert_array_equal(given[0], expected)


OUTSIDE = integers(1, 3, -4)


@pytest.mark.parametrize(
    ("build", "index", "expected"),
    [
        (lambda x, i: op.gather_elements(x, i, 0), OUTSIDE[:, None], [[4], [NAN], [NAN]]),
        (op.gather_nd, OUTSIDE[:, None], [X[1], [NAN] * 4, [NAN] * 4]),
        (lambda x, i: op.index_tensor(x, [i]), OUTSIDE, [X[1], [NAN] * 4, [NAN] * 4]),
    ],
    ids=["gather_elements", "gather_nd", "index_tensor"],
)
def test_gathers_read_nan_outside(build, index, expected):
    np.testing.assert_array_equal(computed(build, X, index), expected)
    whole = computed(build, X.astype("int32"), index)
    np.testing.assert_array_equal(whole, np.nan_to_num(np.array(expected)))


@pytest.mark.parametrize(
    ("build", "index", "updates"),
    [
        (
            lambda x, i, u: op.scatter_elements(x, i, u, axis=0),
            OUTSIDE[:, None],
            [[-1], [-2], [-3]],
        ),
        (op.scatter_nd, np.c_[OUTSIDE, [0, 0, 0]], [-1, -2, -3]),
        (lambda x, i, u: op.index_put(x, [i, op.zeros_like(i)], u), OUTSIDE, [-1, -2, -3]),
    ],
    ids=["scatter_elements", "scatter_nd", "index_put"],
)
def test_scatters_leave_out_what_points_outside(build, index, updates):
    expected = X.copy()
    expected[1, 0] = -1
    given = computed(build, X, index, np.array(updates, "float64"))
    np.testing.assert_array_equal(given, expected)


def test_gather_from_an_axis_without_elements():
    x = np.zeros((0, 4))
    given = computed(lambda x, i: op.take(x, i, axis=0), x, integers(0, 1))
    np.testing.assert_array_equal(given, np.full((2, 4), NAN))
    rows = tvm.tirx.Var("n", "int64")
    mod = function(
        lambda b, x, i: b.emit(op.take(x, i, axis=0)), ([rows, 4], "float64"), ((2,), "int64")
    )
    np.testing.assert_array_equal(run(mod, "main", x, integers(0, 1))[0], np.full((2, 4), NAN))


REDUCTIONS = {
    "update": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def scattered(x, index, updates, axis, reduction):
    """The definition: one update after the other."""
    y = x.copy()
    for place in np.ndindex(*index.shape):
        at = list(place)
        at[axis] = index[place]
        y[tuple(at)] = REDUCTIONS[reduction](y[tuple(at)], updates[place])
    return y


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatter_elements_with_repeated_indices(reduction, dtype):
    generator = np.random.default_rng(0)
    x = generator.integers(-3, 4, (4, 3, 5)).astype(dtype)
    index = generator.integers(-3, 3, (2, 6, 4))  # smaller than x along the other axes
    updates = generator.integers(-3, 4, (2, 6, 4)).astype(dtype)

    def build(x, i, u):
        return op.scatter_elements(x, i, u, axis=1, reduction=reduction)

    expected = scattered(x, index, updates, 1, reduction)
    np.testing.assert_array_equal(computed(build, x, index, updates), expected)


def test_scatter_elements_of_an_index_that_is_shorter_than_the_data():
    x, index, updates = np.zeros((2, 2, 3)), np.zeros((1, 2, 2), "int64"), np.ones((1, 2, 2))

    def build(x, i, u):
        return op.scatter_elements(x, i, u, axis=0)

    assert computed(build, x, index, updates)[0].tolist() == [[1, 1, 0], [1, 1, 0]]


def test_mean_of_repeated_indices():
    x, index, updates = np.array([1.0, 5.0]), integers(0, 0), np.array([2.0, 6.0])

    def build(x, i, u):
        return op.scatter_elements(x, i, u, axis=0, reduction="mean")

    assert computed(build, x, index, updates).tolist() == [3, 5]
    whole = [array.astype("int32") for array in (x, updates)]
    assert computed(build, whole[0], index, -whole[1]).tolist() == [-3, 5]  # ⌊−7 / 3⌋, as in torch


def test_mean_of_half_precision_is_rounded_once():
    """The sum is beyond the greatest number of float16, 65,504."""

    def build(x, i, u):
        return op.scatter_elements(x, i, u, axis=0, reduction="mean")

    half = np.array([60000.0, 60000.0], dtype="float16")
    assert computed(build, half[:1], integers(0, 0), half).tolist() == [60000]


@pytest.mark.parametrize("reduction", ["min", "max"])
def test_nan_stays_nan(reduction):
    x, index = np.array([1.0, NAN, 2.0]), integers(0, 1, 2, 2)
    updates = np.array([NAN, 1.0, NAN, 5.0])

    def build(x, i, u):
        return op.scatter_elements(x, i, u, axis=0, reduction=reduction)

    assert np.isnan(computed(build, x, index, updates)).all()


def test_values_that_are_put_are_broadcast():
    given = computed(
        lambda x, i, j, v: op.index_put(x, [i, j], v, accumulate=True),
        X,
        integers([0], [2]),
        integers(1, 1, 3),
        np.array([10.0]),
    )
    expected = X.copy()
    np.add.at(expected, ([[0], [2]], [1, 1, 3]), 10)
    np.testing.assert_array_equal(given, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_adds_up_in_float32(dtype):
    import ml_dtypes

    half = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    mod = function(
        lambda b, x, i: b.emit(op.take(x, i, axis=0)), ((1, 2), dtype), ((5000,), "int64")
    )
    index, ct = np.zeros(5000, "int64"), np.ones((5000, 2), half)
    gradient = run(gg.vjp(mod, wrt=["x0"]), "main_vjp", np.ones((1, 2), half), index, ct)[1]
    assert gradient.dtype == half
    np.testing.assert_array_equal(gradient, np.full((1, 2), 5000, half))


def test_a_large_table_is_summed_alike_in_every_run():
    """Threads share the columns, never the updates of one element."""
    generator = np.random.default_rng(0)
    table = generator.normal(size=(30, 200)).astype("float32")
    index = generator.integers(0, 30, 3000)
    ct = generator.normal(size=(3000, 200)).astype("float32")
    mod = function(
        lambda b, x, i: b.emit(op.take(x, i, axis=0)), (table.shape, "float32"), ((3000,), "int64")
    )
    machine = relax.VirtualMachine(gg.compile(gg.vjp(mod, wrt=["x0"])), tvm.cpu())
    runs = [flat(machine["main_vjp"](*map(to_tensor, (table, index, ct))))[1] for _ in range(3)]
    expected = np.zeros_like(table)
    np.add.at(expected, index, ct)  # in the order of the indices, as we do
    for given in runs:
        np.testing.assert_array_equal(given, expected)


def test_sequences_longer_than_their_axis_are_reversed_whole():
    given = computed(op.reverse_sequence, X, integers(9, 2, -1))
    expected = [X[0, ::-1], X[1, [1, 0, 2, 3]], X[2]]
    np.testing.assert_array_equal(given, expected)


def test_an_axis_that_does_not_exist():
    with pytest.raises(gg.errors.GraphGradError, match=r"scatter_elements: axis 2 .* rank 2"):
        computed(
            lambda x, i, u: op.scatter_elements(x, i, u, axis=2), X, integers([0]), np.ones((1, 1))
        )
