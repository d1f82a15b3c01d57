"""Reductions by any combiner: gradients, ties, NaN, empty ranges, init and where."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback import create_prim_func
from graphgrad.fallback.gradient import gradient_expressions, te_gradient
from graphgrad.fallback.graph import operations
from graphgrad.ops.elementwise import larger, smaller
from tests.fallback.differences import check, compiled
from tests.fallback.running import executable, unwritten
from tests.labels import label

X = te.placeholder((3, 2, 4), "float64", name="x")
Z = te.placeholder((3,), "float64", name="z")
VALUES = np.random.default_rng(5).standard_normal((3, 2, 4))
STARTS = np.array([0.3, 1.7, -0.6])


def constant(value):
    return tirx.const(value, "float64")


def log_sum_exp(a, b):
    largest = te.max(a[0], b[0])
    return largest, a[1] * te.exp(a[0] - largest) + b[1] * te.exp(b[0] - largest)


def welford(a, b):
    count = a[2] + b[2]
    delta = b[0] - a[0]
    return (
        a[0] + delta * b[2] / count,
        a[1] + b[1] + delta * delta * a[2] * b[2] / count,
        count,
    )


def complex_product(a, b):
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def matrix_product(a, b):
    return (
        a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3],
        a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3],
    )  # fmt: skip


def affine(a, b):
    """x ↦ p · x + q, composed."""
    return a[0] * b[0], a[1] * b[0] + b[1]


def largest_magnitude(a, b):
    left = te.abs(a[0]) >= te.abs(b[0])
    return tirx.Select(left, a[0], b[0]), tirx.Select(left, a[1], b[1])


def second_if_larger(a, b):
    """A choice written the other way round."""
    return tirx.Select(b[0] > a[0], b[0], a[0]), tirx.Select(b[0] > a[0], b[1], a[1])


def sums_of_powers(a, b):
    return a[0] + b[0], a[1] + b[1]


def apart(a, b):
    """Components that have nothing to do with each other, one of them an integer."""
    return a[0] + b[0], te.max(a[1], b[1]), a[2] * b[2], a[3] + b[3]


def weighted_by_count(a, b):
    """Positions are counted beside the sum that depends on them."""
    return a[0] + b[0], a[1] + b[1] + b[1] * b[0].astype("float64")


def log_add_exp(a, b):
    return te.max(a, b) + tirx.log1p(te.exp(-te.abs(a - b)))


def norm(a, b):
    return te.sqrt(a * a + b * b)


def product(a, b):
    return a * b


def argmax(a, b):
    """As topi writes it: the two components have different conditions."""
    larger = a[1] > b[1]
    first = tirx.any(larger, tirx.all(tirx.EQ(a[1], b[1]), a[0] < b[0]))
    return tirx.Select(first, a[0], b[0]), tirx.Select(larger, a[1], b[1])


ONE, ZERO, LEAST = constant(1.0), constant(0.0), te.min_value("float64")
COUNT = tirx.const(0, "int32")


def loaded(i, k, j):
    return (X(i, k, j),)


def two(i, k, j):
    return X(i, k, j) * 0.5, te.sin(X(i, k, j)) * Z(i)


CASES = [
    # combiner, identity, sources, components that are differentiated
    (log_sum_exp, (LEAST, ZERO), lambda i, k, j: (X(i, k, j), ONE), (0, 1)),
    (welford, (ZERO, ZERO, ZERO), lambda i, k, j: (X(i, k, j), ZERO, ONE), (0, 1)),
    (complex_product, (ONE, ZERO), two, (0, 1)),
    (matrix_product, (ONE, ZERO, ZERO, ONE), lambda i, k, j: (*two(i, k, j), ONE, Z(i)), (1, 2)),
    (affine, (ONE, ZERO), two, (1,)),
    (largest_magnitude, (ZERO, ZERO), two, (0, 1)),
    (second_if_larger, (LEAST, ZERO), two, (1,)),
    (sums_of_powers, (ZERO, ZERO), lambda i, k, j: (X(i, k, j), X(i, k, j) * X(i, k, j)), (0, 1)),
    (apart, (ZERO, LEAST, ONE, COUNT), lambda i, k, j: (*two(i, k, j), Z(i), k + j), (0, 1, 2)),
    (weighted_by_count, (COUNT, ZERO), lambda i, k, j: (k + 2 * j, X(i, k, j)), (1,)),
    (argmax, (tirx.const(-1, "int32"), LEAST), lambda i, k, j: (4 * k + j, X(i, k, j)), (1,)),
    (log_add_exp, (LEAST,), loaded, (0,)),
    (norm, (ZERO,), loaded, (0,)),
    (product, (ONE,), loaded, (0,)),
    (te.max, None, loaded, (0,)),
    (te.min, None, loaded, (0,)),
    (te.sum, None, loaded, (0,)),
]


def reduced(combine, neutral, sources, where=None, init=None):
    """Return the components of a reduction of `sources(i, k, j)` over k and j."""
    if neutral is not None:
        single = len(neutral) == 1
        combine = te.comm_reducer(combine, lambda *_: neutral[0] if single else neutral)
    k, j = te.reduce_axis((0, 2), "k"), te.reduce_axis((0, 4), "j")

    def body(i):
        values = sources(i, k, j)
        options = {} if where is None else {"where": where(k, j)}
        options |= {} if init is None else {"init": init(i)}
        return combine(values if len(values) > 1 else values[0], axis=[k, j], **options)

    result = te.compute((3,), body, name="reduced")
    return [result] if isinstance(result, te.Tensor) else list(result)


@pytest.mark.parametrize("masked", [False, True], ids=["all", "where"])
@pytest.mark.parametrize(
    "combine, neutral, sources, components", CASES, ids=[*(label(c[0]) for c in CASES[:-3]), *"<>+"]
)
def test_combiners(combine, neutral, sources, components, masked):
    """The first element is left out: a fold must not combine what it starts from with itself."""
    where = (lambda k, j: (k + j) % 3 > 0) if masked else None
    outputs = reduced(combine, neutral, sources, where)
    check([outputs[i] for i in components], [(X, VALUES), (Z, STARTS)])


@pytest.mark.parametrize(
    "masked, given",
    [(True, Z), (False, lambda i: tirx.const(0.5, "float32"))],
    ids=["tensor", "constant"],
)
@pytest.mark.parametrize(
    "combine, neutral",
    [(te.sum, None), (te.max, None), (te.min, None), (product, (ONE,)), (log_add_exp, (LEAST,))],
    ids=["sum", "max", "min", "product", "fold"],
)
def test_init_has_a_cotangent_too(combine, neutral, masked, given):
    where = (lambda k, j: (k + j) % 3 > 0) if masked else None
    outputs = reduced(combine, neutral, loaded, where, given)
    check(outputs, [(X, VALUES), (Z, STARTS)])


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_products_with_zeros_are_exact_to_second_order(zeros):
    values = VALUES[:, :1].copy()
    values[1, 0, :zeros] = 0.0
    x = te.placeholder((3, 1, 4), "float64", name="x")
    j = te.reduce_axis((0, 4), "j")
    combine = te.comm_reducer(product, lambda _: ONE)
    output = te.compute((3,), lambda i: combine(x(i, 0, j), axis=j), name="output")
    check([output], [(x, values)], order=2)


def test_masked_products_with_zeros_are_exact_to_second_order():
    """The sums in the first gradient are zero there, and their own gradients are not."""
    values = VALUES.copy()
    values[1, 0, 1] = values[2, 1, 0] = values[2, 0, 1] = 0.0
    outputs = reduced(
        product, (ONE,), lambda i, k, j: (X(i, k, j) * Z(i),), lambda k, j: (k + j) % 3 > 0
    )
    check(outputs, [(X, values), (Z, STARTS)], order=2)


@pytest.mark.parametrize(
    "combine, neutral, sources, component",
    [
        (log_sum_exp, (LEAST, ZERO), lambda i, k, j: (X(i, k, j), ONE), 1),
        (complex_product, (ONE, ZERO), two, 0),
        (argmax, (tirx.const(-1, "int32"), LEAST), lambda i, k, j: (4 * k + j, X(i, k, j)), 1),
    ],
    ids=["log_sum_exp", "complex_product", "argmax"],
)
def test_second_order(combine, neutral, sources, component):
    output = reduced(combine, neutral, sources)[component]
    check([output], [(X, VALUES), (Z, STARTS)], order=2)


def row_gradient(combine, neutral, row, component=0, sources=lambda x, j: x(j), dtype="float64"):
    """Return the gradient of one component of a reduction of a row."""
    x = te.placeholder((len(row),), dtype, name="x")
    j = te.reduce_axis((0, len(row)), "j")
    if neutral is not None:
        combine = te.comm_reducer(combine, lambda *_: neutral if len(neutral) > 1 else neutral[0])
    result = te.compute((), lambda: combine(sources(x, j), axis=j), name="result")
    output = result if isinstance(result, te.Tensor) else result[component]
    return compiled(te_gradient(output, [x]), [x])([np.array(row, dtype)])[0].tolist()


INFINITY, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    "row, first",
    [
        ([1.0, 3.0, 3.0], 1),
        ([-INFINITY, -INFINITY], 0),
        ([1.0, NAN, 3.0, NAN], 1),
        ([INFINITY, NAN], 1),
        ([-3.0, -0.0, 0.0, -1e-45], 1),
        ([-3.0, -2.0, -5e-42, -1e30], 2),
        ([1e-44, 2e-44, 3e38], 2),
    ],
    ids=["ties", "all -inf", "NaN", "inf and NaN", "zeros", "negative", "subnormal"],
)
@pytest.mark.parametrize("wants", [max, min])
@pytest.mark.parametrize("with_nan", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_first_of_the_extremes_gets_all(row, first, wants, with_nan, dtype):
    row = [float(np.array(value, dtype)) for value in row] * 2
    if dtype == "float16":  # where what is small is zero, and what is large infinite
        first = next(i for i, x in enumerate(row) if np.isnan(x) or x == np.nanmax(row))
        first = next((i for i, x in enumerate(row) if np.isnan(x)), first)
    start = tirx.const(-INFINITY if wants is max else INFINITY, dtype)
    extremum = (larger if wants is max else smaller) if with_nan else getattr(te, wants.__name__)
    row = row if wants is max else [-value for value in row]
    given = row_gradient(extremum, (start,) if with_nan else None, row, dtype=dtype)
    assert given == [float(i == first) for i in range(len(row))]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("extremum, sign", [(larger, 1), (smaller, -1)])
def test_the_first_of_the_extremes_where_the_result_is_at_hand(extremum, sign, dtype):
    """It is compared with, and there is no second reduction of what is reduced."""
    rows = [
        [1, 3, 3, 2],
        [-INFINITY] * 4,
        [1, NAN, 3, NAN],
        [INFINITY, NAN, 0, 0],
        [-3, -0.0, 0, -1],
    ]
    x = np.array(rows, dtype) * np.array(sign, dtype)
    data = te.placeholder(x.shape, dtype, name="x")
    j = te.reduce_axis((0, 5), "j")
    start = tirx.const(-sign * INFINITY, dtype)
    combine = te.comm_reducer(extremum, lambda _: start)
    # With a border that is never the first: of the second row it is equal.
    element = lambda i: te.if_then_else(j < 4, data[i, te.min(j, 3)], start)  # noqa: E731
    result = te.compute((5,), lambda i: combine(element(i), axis=j), name="result")
    gradients = gradient_expressions(result, [data], read_outputs=True)
    names = [op.name for op in operations(*gradients)]
    assert "result_position" in names and "result_extreme" not in names
    expected = np.zeros(x.shape)
    expected[np.arange(5), [1, 0, 1, 1, 1]] = 1
    np.testing.assert_array_equal(compiled(gradients, [data])([x])[0], expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extremes_of_rows_and_windows(dtype):
    """The largest is at another place of each row; elements count only on a condition."""
    x = np.zeros((80, 2, 64), dtype)
    places = np.arange(80) * 37 % 128
    x.reshape(80, 128)[np.arange(80), places] = 1.0
    x[:, 0, 0] = 9.0
    rows = te.placeholder(x.shape, dtype, name="x")
    k, j = te.reduce_axis((0, 2), name="k"), te.reduce_axis((0, 64), name="j")
    result = te.compute(
        (80,), lambda i: te.max(rows(i, k, j), axis=[k, j], where=k + j > 0), name="result"
    )
    expected = x.copy()
    expected[:, 0, 0] = 0
    expected[places == 0] = 0  # zeros elsewhere: the first of those that count
    expected[places == 0, 0, 1] = 1
    np.testing.assert_array_equal(compiled(te_gradient(result, [rows]), [rows])([x])[0], expected)


@pytest.mark.parametrize(
    "row, first, least",
    [
        ([1.0, 3.0, 3.0], 1, LEAST),
        ([1.0, 3.0, 3.0], 1, constant(-INFINITY)),
        ([-INFINITY, -INFINITY], 0, constant(-INFINITY)),
    ],
    ids=["ties", "ties above -inf", "all -inf"],
)
def test_the_first_of_equal_choices_gets_all(row, first, least):
    """Also where the combiner itself would take the later one, or what it starts from."""
    neutral = (tirx.const(-1, "int32"), least)
    given = row_gradient(argmax, neutral, row, 1, lambda x, j: (j, x(j)))
    assert given == [float(i == first) for i in range(len(row))]


def test_components_out_of_order_and_without_cotangents():
    outputs = reduced(apart, (ZERO, LEAST, ONE, COUNT), lambda i, k, j: (*two(i, k, j), Z(i), k))
    check([outputs[2], outputs[0]], [(X, VALUES), (Z, STARTS)])


def test_an_integer_and_a_float_of_one_stage_are_read():
    """The float gets its cotangent, although its stage is reached through the integer as well."""
    x = te.placeholder((4,), "float64", name="x")
    both = te.compute((4,), lambda i: (i, x(i) * 2.0), name="both")
    j = te.reduce_axis((0, 4), name="j")
    reduce = te.comm_reducer(
        complex_product, lambda *_: (constant(1.0), constant(0.0)), name="complex_product"
    )
    sources = (both[1](j), both[0](j).astype("float64"))
    output = te.compute((1,), lambda i: reduce(sources, axis=j), name="y")[1]
    check([output], [(x, np.array([0.5, -1.0, 0.75, 1.25]))])


@pytest.mark.parametrize("combine, neutral", [(te.max, None), (product, (ONE,)), (norm, (ZERO,))])
def test_ranges_that_depend_on_other_loops(combine, neutral):
    """A triangle, and one whose row-major positions would collide if rows had their own lengths."""
    x = te.placeholder((3, 4, 5), "float64", name="x")
    if neutral is not None:
        combine = te.comm_reducer(combine, lambda _: neutral[0])

    def body(i):
        k = te.reduce_axis((1, i + 2), "k")
        j = te.reduce_axis((0, 4 - k), "j")
        return combine(x(i, k, j), axis=[k, j])

    output = te.compute((3,), body, name="triangle")
    check([output], [(x, np.random.default_rng(2).standard_normal((3, 4, 5)))])


@pytest.mark.parametrize(
    "combine, neutral",
    [(te.sum, None), (te.max, None), (product, (ONE,)), (log_add_exp, (LEAST,))],
    ids=["sum", "max", "product", "fold"],
)
def test_symbolic_ranges_that_may_be_empty(combine, neutral):
    n = te.var("n", "int64")
    x, z = te.placeholder((n, 2), "float64", name="x"), te.placeholder((2,), "float64", name="z")
    k = te.reduce_axis((0, n), "k")
    if neutral is not None:
        combine = te.comm_reducer(combine, lambda _: neutral[0])
    source = te.compute((n, 2), lambda a, b: x(a, b) * z(b), name="source")
    output = te.compute((2,), lambda i: combine(source(k, i), axis=k), name="output")
    gradients = te_gradient(output, [x, z])
    call = executable(create_prim_func([x, z, *gradients]))
    generator = np.random.default_rng(4)
    for count in (0, 1, 3):
        values, factors = generator.standard_normal((count, 2)), np.array([0.5, 2.0])
        *_, by_x, by_z = call(values, factors, *unwritten(*gradients, n=count))
        assert np.isfinite(by_x).all()
        np.testing.assert_allclose((by_x * values).sum(0), by_z * factors, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("combine", [product, norm, te.max], ids=["product", "fold", "max"])
def test_gradients_have_the_dtype_of_what_is_reduced(combine, dtype):
    x = te.placeholder((3,), dtype, name="x")
    j = te.reduce_axis((0, 3), "j")
    if combine is not te.max:
        start = 1.0 if combine is product else 0.0
        combine = te.comm_reducer(combine, lambda t: tirx.const(start, t))
    output = te.compute((), lambda: combine(x(j), axis=j), name="output")
    (gradient,) = te_gradient(output, x)
    assert str(gradient.dtype) == dtype
