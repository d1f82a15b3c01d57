import pytest
from tvm import te, tirx
from tvm.script import tirx as T

from graphgrad.lower.fusion.horizontal.flat import flat_map
from tests.labels import label


def tensor(*shape, dtype="float32"):
    """Return a placeholder with 64-bit extents, as Relax makes them."""
    return te.placeholder(tuple(tirx.IntImm("int64", n) for n in shape), dtype, "x")


def told(inputs, output):
    return flat_map(te.create_prim_func([*inputs, output]))


X, Y = tensor(3, 1, 5), tensor(3, 1, 5)
SCALAR, LINE = tensor(), tensor(15)


def elementwise(function, *inputs):
    return list(inputs), te.compute(X.shape, function)


FLAT = {
    "a sum": elementwise(lambda *i: X(*i) + Y(*i), X, Y),
    "a scalar": elementwise(lambda *i: X(*i) * SCALAR(), X, SCALAR),
    "a root": elementwise(lambda *i: tirx.sqrt(X(*i)), X),
    "a choice": elementwise(lambda *i: tirx.Select(SCALAR() > 0, X(*i), Y(*i)), SCALAR, X, Y),
    "another shape": elementwise(lambda i, j, k: X(i, j, k) + LINE(i * 5 + k), X, LINE),
    "nothing read": elementwise(lambda *_: tirx.const(1.0, "float32")),
}

COLUMN, HALF, MASK = (
    tensor(3, 1, 1),
    tensor(3, 1, 5, dtype="float16"),
    tensor(3, 1, 5, dtype="bool"),
)

OTHERS = {
    "an index": elementwise(lambda i, j, k: X(i, j, k) + i.astype("float32"), X),
    "a broadcast": elementwise(lambda i, j, k: X(i, j, k) + COLUMN(i, j, 0), X, COLUMN),
    "another element of another shape": elementwise(lambda i, j, k: LINE(i + 3 * k), LINE),
    "another element": elementwise(lambda i, j, k: X(i, j, 4 - k), X),
    "an exponential": elementwise(lambda *i: tirx.exp(X(*i)), X),
    "a branch": elementwise(
        lambda i, j, k: tirx.if_then_else(Y(i, j, k) > 0, X(i, j, k), 0.0), X, Y
    ),
    "half precision": elementwise(lambda *i: HALF(*i).astype("float32"), HALF),
    "booleans": elementwise(lambda *i: tirx.Select(MASK(*i), X(*i), Y(*i)), MASK, X, Y),
    "a function without vectors": elementwise(lambda *i: tirx.erf(X(*i)), X),
    "a reduction": (
        [X],
        te.compute((3,), lambda i: te.sum(X(i, 0, (k := te.reduce_axis((0, 5)))), axis=k)),
    ),
    "a scalar alone": ([SCALAR], te.compute((), lambda: SCALAR() + 1.0)),
    "a scalar result beside a tensor": ([X, SCALAR], te.compute((), lambda: SCALAR() * 2.0)),
    "nothing": ([tensor(0, 2)], te.compute((0, 2), lambda *i: tirx.const(1.0, "float32"))),
}


@pytest.mark.parametrize("case", FLAT.values(), ids=FLAT)
def test_maps_of_equal_elements(case):
    found = told(*case)
    assert found is not None
    assert found.length == 15 and len(found.stores) == 1
    assert len(found.params) == len(case[0]) + 1


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_what_is_no_flat_map(case):
    assert told(*case) is None


@pytest.mark.parametrize("shape", [(1,), (7,), (2, 3, 4)], ids=label)
def test_stages_between(shape):
    x, rate = tensor(*shape), tensor(dtype="float64")
    narrow = te.compute((), lambda: rate().astype("float32"))
    square = te.compute(shape, lambda *i: x(*i) * x(*i))
    found = told([x, rate], te.compute(shape, lambda *i: square(*i) * narrow()))
    assert found is not None and len(found.stores) == 3


def test_a_result_that_is_stored_twice():
    @T.prim_func(s_tir=True)
    def twice(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
        for i in range(T.int64(4)):
            with T.sblock("first"):
                v = T.axis.spatial(T.int64(4), i)
                y[v] = x[v]
        for i in range(T.int64(4)):
            with T.sblock("second"):
                v = T.axis.spatial(T.int64(4), i)
                y[v] = x[v] * T.float32(2)

    assert flat_map(twice) is None


def test_a_loop_that_stops_short():
    @T.prim_func(s_tir=True)
    def short(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
        for i in range(T.int64(3)):
            with T.sblock("some"):
                v = T.axis.spatial(T.int64(4), i)
                y[v] = x[v]

    assert flat_map(short) is None


def test_a_result_that_is_read_before_it_is_stored():
    @T.prim_func(s_tir=True)
    def early(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
        for i in range(T.int64(4)):
            with T.sblock("some"):
                v = T.axis.spatial(T.int64(4), i)
                y[v] = y[v] + x[v]

    assert flat_map(early) is None
