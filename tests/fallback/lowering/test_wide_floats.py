"""Arithmetic of bfloat16: every conversion exact, everything between in float32."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx
from tvm.ir import prim
from tvm.script import tirx as T

from graphgrad.errors import ArgumentError
from graphgrad.fallback import create_prim_func
from graphgrad.fallback.lowering.wide_floats import widen_bfloat16
from tests.fallback.interpreter import numpy_dtype
from tests.fallback.lowered import buffers_of
from tests.fallback.running import run, unwritten
from tests.labels import label

NARROW = numpy_dtype("bfloat16")
NUMBERS = np.arange(1 << 16, dtype="uint16").view(NARROW)
"""Each bfloat16 there is."""

_BITS = np.random.default_rng(0).integers(0, 1 << 32, 4000, dtype="uint32")
SINGLES = np.concatenate(
    [
        _BITS.view("float32"),
        (_BITS & np.uint32(0xFFFF0000) | np.uint32(0x8000)).view("float32"),  # half-way
        np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38, -3.4e38, 1.0], "float32"),
    ]
)


def rounded(values):
    with np.errstate(all="ignore"):
        return np.asarray(values, "float32").astype(NARROW)


def placeholder(name, array):
    return te.placeholder(array.shape, str(array.dtype), name=name)


def computed(body, *arrays, dtype="float32"):
    """Return what a stage computes from the elements at one place of some vectors."""
    inputs = [placeholder(f"x{i}", a) for i, a in enumerate(arrays)]
    y = te.compute(arrays[0].shape, lambda i: body(*(x(i) for x in inputs)).astype(dtype), "y")
    return run(create_prim_func([*inputs, y]), *arrays, *unwritten(y))[-1]


def bound(value, body):
    variable = tirx.Var("v", value.ty)
    return prim.Let(variable, value, body(variable))


def test_every_number_is_widened_exactly():
    """Also where it is bound to a variable: TVM would take its bits for an integer there."""
    for body in (lambda x: x, lambda x: bound(x.astype("float32"), lambda v: v)):
        given = computed(body, NUMBERS)
        np.testing.assert_array_equal(given, NUMBERS.astype("float32"))


def test_numbers_are_copied_by_their_bits():
    given = computed(lambda x: x, NUMBERS, dtype="bfloat16")
    np.testing.assert_array_equal(given.view("uint16"), NUMBERS.view("uint16"))


def test_results_are_rounded_to_nearest_even():
    given = computed(lambda x: x, SINGLES[~np.isnan(SINGLES)], dtype="bfloat16")
    np.testing.assert_array_equal(given, rounded(SINGLES[~np.isnan(SINGLES)]))


def test_a_cast_rounds_in_the_middle_of_an_expression():
    """TVM would drop it. Of whatever bits a NaN is, it stays one."""
    given = computed(lambda x: x.astype("bfloat16").astype("float32"), SINGLES)
    np.testing.assert_array_equal(given, rounded(SINGLES).astype("float32"))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "float16", "float64"])
def test_casts_from_other_numbers(dtype):
    values = np.random.default_rng(1).uniform(-128, 128, 500).astype(dtype)
    values = values * 999 if dtype in ("int32", "int64") else values
    given = computed(lambda x: x.astype("bfloat16").astype("float32"), values)
    np.testing.assert_array_equal(given, rounded(values).astype("float32"))


def test_a_stage_between_rounds_if_it_is_a_cast():
    x = placeholder("x", SINGLES)
    narrow = te.compute(x.shape, lambda i: x(i).astype("bfloat16"), "narrow")
    y = te.compute(x.shape, lambda i: narrow(i).astype("float32"), "y")
    *_, given = run(create_prim_func([x, y]), SINGLES, *unwritten(y))
    np.testing.assert_array_equal(given, rounded(SINGLES).astype("float32"))


def test_arithmetic_is_not_rounded_between():
    a, b = (np.random.default_rng(i).uniform(-2, 2, 200).astype(NARROW) for i in (2, 3))
    given = computed(lambda x, y: (x + y * 100) - y * 100, a, b)
    wide = [v.astype("float32") for v in (a, b)]
    np.testing.assert_allclose(given, wide[0], atol=1e-4)
    given = computed(lambda x, y: x * y, a, b, dtype="bfloat16")
    np.testing.assert_array_equal(given, rounded(wide[0] * wide[1]))


def test_constants_are_numbers_that_bfloat16_has():
    given = computed(lambda x: tirx.EQ(x, tirx.const(0.1, "bfloat16")), rounded([0.1, 0.2]))
    np.testing.assert_array_equal(given, [1, 0])


COMPARISONS = {
    "<": (lambda x, y: x < y, np.less),
    "<=": (lambda x, y: x <= y, np.less_equal),
    ">": (lambda x, y: x > y, np.greater),
    ">=": (lambda x, y: x >= y, np.greater_equal),
    "==": (tirx.EQ, np.equal),
    "!=": (tirx.NE, np.not_equal),
}


@pytest.mark.parametrize("place", ["alone", "bound", "condition"])
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_of_either_sign(name, place):
    symbolic, numeric = COMPARISONS[name]
    values = rounded([-np.inf, -7, -6.5, -1e-30, -0.0, 0.0, 1e-30, 6.5, 7, np.inf])
    a, b = (np.ascontiguousarray(v) for v in (np.repeat(values, 10), np.tile(values, 10)))

    def body(x, y):
        if place == "bound":
            return bound(x, lambda v: symbolic(v, y))
        if place == "condition":
            return tirx.if_then_else(symbolic(x, y), tirx.const(1.0, "bfloat16"), x * 0.0)
        return symbolic(x, y)

    finite = np.isfinite(a.astype("float32")) | (place != "condition")
    given = computed(body, a, b)
    np.testing.assert_array_equal(given[finite], numeric(a, b)[finite])


def test_the_remainder():
    a = np.random.default_rng(4).uniform(-9, 9, 100).astype(NARROW)
    given = computed(lambda x: tirx.Mod(x, tirx.const(1.25, "bfloat16")), a)
    np.testing.assert_array_equal(given, np.fmod(a.astype("float32"), np.float32(1.25)))


def test_bits_of_numbers():
    """Those of an element, of a sum that is rounded first, and the number of some bits."""
    a = np.random.default_rng(5).uniform(-9, 9, 100).astype(NARROW)
    given = computed(lambda x: tirx.reinterpret("uint16", x), a, dtype="int32")
    np.testing.assert_array_equal(given, a.view("uint16"))
    given = computed(lambda x: tirx.reinterpret("uint16", x + x / 256), a, dtype="int32")
    wide = a.astype("float32")
    np.testing.assert_array_equal(given, rounded(wide + wide / 256).view("uint16"))
    given = computed(lambda n: tirx.reinterpret("bfloat16", n), a.view("uint16"))
    np.testing.assert_array_equal(given, wide)


def test_a_loop_as_long_as_a_number_says():
    """Expressions of statements, not of values alone."""
    x, counts = (
        te.placeholder((4,), "float32", name="x"),
        te.placeholder((3,), "bfloat16", "counts"),
    )

    def body(i):
        k = te.reduce_axis((0, (counts(i) * 2).astype("int32")), "k")
        return te.sum(x(k), axis=k)

    y = te.compute((3,), body, name="y")
    numbers = np.array([1, 2, 4, 8], "float32")
    *_, given = run(create_prim_func([x, counts, y]), numbers, rounded([0, 1, 2]), *unwritten(y))
    np.testing.assert_array_equal(given, [0, 3, 15])


def largest(x, dtype):
    """Return where the first largest element of each row is, and which it is."""
    choose = te.comm_reducer(
        lambda a, b: tuple(tirx.Select(a[1] >= b[1], m, n) for m, n in zip(a, b, strict=True)),
        lambda t0, t1: (tirx.const(-1, t0), te.min_value(t1)),
    )
    k = te.reduce_axis((0, x.shape[1]), "k")
    return te.compute(
        (x.shape[0],), lambda i: choose((k, x(i, k).astype(dtype)), axis=k), name="largest"
    )


ROWS = rounded([[1, 3, 3, 2], [-5, -6, -7, -5], [0, -0.0, 1, 0], [-9, -8, -8.5, -100]])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_reductions_of_tuples(dtype):
    x = placeholder("x", ROWS)
    places, values = largest(x, dtype)
    *_, at, given = run(create_prim_func([x, places, values]), ROWS, *unwritten(places, values))
    np.testing.assert_array_equal(at, [1, 0, 2, 1])
    np.testing.assert_array_equal(given, [3, -5, 1, -8])


def test_it_may_be_applied_again():
    x = placeholder("x", ROWS)
    func = create_prim_func([x, *largest(x, "bfloat16")])
    tvm.ir.assert_structural_equal(widen_bfloat16(func), func)


def test_stages_that_were_put_into_one_another():
    """What a schedule inlines into a binding is widened where the pass comes again."""
    x = te.placeholder((4, 4), "bfloat16", name="x")
    halves = te.compute((4, 4), lambda i, j: (x(i, j) * 0.5).astype("bfloat16"), name="halves")
    places, values = largest(halves, "float32")
    schedule = s_tir.Schedule(te.create_prim_func([x, places, values]))
    schedule.compute_inline(schedule.get_sblock("halves"))
    func = widen_bfloat16(schedule.mod["main"])
    *_, at, given = run(func, ROWS, *unwritten(places, values))
    np.testing.assert_array_equal(at, [1, 0, 2, 1])
    np.testing.assert_array_equal(given, [1.5, -2.5, 0.5, -4])


@T.prim_func(s_tir=True)
def named_twice(x: T.Buffer((4,), "bfloat16"), y: T.Buffer((4,), "bfloat16")):
    """Memory with a second name, memory of which elements are handed over, and other."""
    twice = T.sblock_alloc_buffer((4,), "bfloat16")
    given = T.sblock_alloc_buffer((4,), "bfloat16")
    other = T.sblock_alloc_buffer((4,), "bfloat16")
    for i in range(4):
        with T.sblock("first"):
            v = T.axis.spatial(4, i)
            twice[v] = x[v] * T.bfloat16(3.0)
            given[v] = x[v]
            T.evaluate(T.Cast("int32", given[v]))
    for i in range(4):
        with T.sblock("second"):
            v = T.axis.spatial(4, i)
            T.reads(twice[v])
            T.writes(other[v])
            name = T.match_buffer(twice[v], (1,), "bfloat16", offset_factor=1)
            other[v] = name[0] * name[0]
    for i in range(4):
        with T.sblock("third"):
            v = T.axis.spatial(4, i)
            bound: T.let[T.float32] = T.Cast("float32", other[v])
            y[v] = T.Cast("bfloat16", bound) + given[v]


def test_memory_between():
    func = widen_bfloat16(named_twice)
    dtypes = {buffer.name: str(buffer.ty.dtype) for buffer in buffers_of(func)}
    assert dtypes == {"twice": "bfloat16", "given": "bfloat16", "other": "float32"}
    values = rounded([1, -2, 0.5, 3])
    _, given = run(func, values, np.zeros(4, NARROW))
    np.testing.assert_array_equal(given, rounded([10, 34, 2.75, 84]))


def test_functions_without_bfloat16_stay():
    x = te.placeholder((4,), "float32", name="x")
    func = te.create_prim_func([x, te.compute((4,), lambda i: te.exp(x[i]))])
    assert widen_bfloat16(func).same_as(func)


TINY = te.placeholder((4,), "float8_e4m3fn", name="tiny")
SINGLE = te.placeholder((4,), "float32", name="single")


@pytest.mark.parametrize(
    "args",
    [
        [TINY, te.compute((4,), lambda i: TINY[i])],
        [TINY, te.compute((4,), lambda i: TINY[i].astype("float32"))],
        [SINGLE, te.compute((4,), lambda i: SINGLE[i].astype("float8_e5m2").astype("float32"))],
    ],
    ids=label,
)
def test_floats_of_eight_bits_are_refused(args):
    with pytest.raises(ArgumentError, match=r"float8_e.* is not served"):
        create_prim_func(args)
