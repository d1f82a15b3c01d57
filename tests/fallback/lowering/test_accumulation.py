"""Results added to buffers in place, against numpy."""

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from tvm import te, tirx

from graphgrad.errors import ArgumentError
from graphgrad.fallback import create_prim_func
from graphgrad.fallback.gradient import te_gradient
from tests.fallback.running import run, unwritten
from tests.labels import label

GENERATOR = np.random.default_rng(0)
A, B, C, D = (te.placeholder((4, 4), "float32", name=name) for name in "ABCD")
ARRAYS = [GENERATOR.standard_normal((4, 4)).astype("float32") for _ in range(4)]
a, b, c, d = ARRAYS


def matmul(x, y):
    k = te.reduce_axis((0, 4), "k")
    return te.compute((4, 4), lambda i, j: te.sum(x[i, k] * y[k, j], axis=k))


def each(function, name="stage"):
    return te.compute((4, 4), function, name=name)


def both(i, j):
    """What a recurrence would look like if it were computed in place."""
    return C[3 - i, j] * C[j, i] + C[i, 3 - j]


CASES = {
    "product": (matmul(A, B), a @ b),
    "product with itself": (matmul(A, C), a @ c),
    "transpose": (each(lambda i, j: C[j, i]), c.T),
    "reversal": (each(lambda i, j: C[3 - i, j] * 2.0), 2 * c[::-1]),
    "neighbors": (each(both), c[::-1] * c.T + c[:, ::-1]),
    "the same element": (each(lambda i, j: C[i, j] * A[i, j]), c * a),
    "the buffer": (C, c),
    "an input": (A, a),
}


@pytest.mark.parametrize("case", CASES)
def test_a_result_is_added_to_what_the_buffer_held(case):
    output, expected = CASES[case]
    func = create_prim_func([A, B, C], accumulate={output: C})
    assert len(func.params) == 3
    given = run(func, a, b, c)
    np.testing.assert_allclose(given[2], c + expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(given[0], a)


def test_gradient_of_a_product():
    H = te.placeholder((4, 4), "float32", name="H")
    dA, dB = te_gradient(matmul(A, B), [A, B], H)
    func = create_prim_func([A, B, H, C, D], accumulate={dA: C, dB: D})
    *_, new_c, new_d = run(func, a, b, c, d, a)
    np.testing.assert_allclose(new_c, d + c @ b.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new_d, a + a.T @ c, rtol=1e-5, atol=1e-6)


def test_all_stages_read_what_the_buffers_held_before():
    """Each buffer is read at other elements by the term of the other, and by an output."""
    first = each(lambda i, j: D[j, i] + C[i, 3 - j])
    second = each(lambda i, j: C[3 - i, j] * D[i, 3 - j])
    result = each(lambda i, j: C[j, i] - D[i, j], name="result")
    func = create_prim_func([C, result, D], accumulate=[(first, C), (second, D)])
    new_c, given, new_d = run(func, c, *unwritten(result), d)
    np.testing.assert_allclose(new_c, c + d.T + c[:, ::-1], rtol=1e-6)
    np.testing.assert_allclose(new_d, d + c[::-1] * d[:, ::-1], rtol=1e-6)
    np.testing.assert_allclose(given, c.T - d, rtol=1e-6)


def test_an_output_may_be_returned_too_and_added_twice():
    term = each(lambda i, j: C[j, i] + A[i, j])
    func = create_prim_func([A, C, D, term], accumulate=[(term, C), (term, D)])
    _, new_c, new_d, given = run(func, a, c, d, *unwritten(term))
    for array, expected in ((new_c, c + c.T + a), (new_d, d + c.T + a), (given, c.T + a)):
        np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-6)


def test_no_two_parameters_share_the_buffer():
    """`tirx.noalias` promises that none overlap."""
    func = create_prim_func([A, B, C], accumulate={matmul(A, B): C})
    assert func.attrs["tirx.noalias"]
    stored = set()
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, lambda s: stored.add(s.buffer)))
    assert func.params[2] in stored


ROWS, VOCABULARY = te.var("rows", "int64"), te.var("vocabulary", "int64")
INDICES = te.placeholder((ROWS,), "int32", name="indices")


def embedding_gradient(dtype):
    """Return the gradient of a table by its rows, their cotangent and a buffer."""
    table = te.placeholder((VOCABULARY, 3), dtype, name="table")
    head = te.placeholder((ROWS, 3), dtype, name="head")
    rows = te.compute((ROWS, 3), lambda i, j: table[INDICES[i], j], name="rows")
    (gradient,) = te_gradient(rows, table, head)
    return gradient, head, te.placeholder((VOCABULARY, 3), dtype, name="buffer")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_scatter(dtype):
    gradient, head, buffer = embedding_gradient(dtype)
    func = create_prim_func([INDICES, head, buffer], accumulate={gradient: buffer})
    numpy_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    indices = np.array([2, 0, 2, 2], "int32")
    values = GENERATOR.standard_normal((4, 3)).astype(numpy_dtype)
    before = GENERATOR.standard_normal((5, 3)).astype(numpy_dtype)
    expected = before.astype("float64")
    np.add.at(expected, indices, values.astype("float64"))
    *_, given = run(func, indices, values, before)
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3}.get(dtype, 1e-6)
    np.testing.assert_allclose(given.astype("float64"), expected, rtol=tolerance, atol=1e-6)


def test_a_scatter_of_wide_floats_needs_no_memory():
    gradient, head, buffer = embedding_gradient("float32")
    args = [INDICES, head, buffer]
    assert not _stores_zeros(create_prim_func(args, {gradient: buffer}))
    # The table of zeros is needed where the gradient itself is read.
    assert _stores_zeros(create_prim_func([*args, gradient], {gradient: buffer}))


def test_a_scatter_that_is_returned_too_and_added_twice():
    gradient, head, buffer = embedding_gradient("float32")
    other = te.placeholder(buffer.shape, "float32", name="other")
    args = [INDICES, head, buffer, other, gradient]
    func = create_prim_func(args, [(gradient, buffer), (gradient, other)])
    indices, values = np.array([1, 1], "int32"), np.ones((2, 3), "float32")
    table = np.arange(6, dtype="float32").reshape(2, 3)
    given = run(func, indices, values, table, -table, *unwritten(gradient, vocabulary=2))[2:]
    expected = np.array([[0, 0, 0], [2, 2, 2]], "float32")
    for array, before in zip(given, (table, -table, 0), strict=True):
        np.testing.assert_array_equal(array, before + expected)


def test_a_scatter_that_reads_the_buffer():
    """The rows that are added are of the buffer itself."""
    buffer = te.placeholder((VOCABULARY, 3), "float32", name="buffer")
    rows = te.compute((ROWS, 3), lambda i, j: tirx.exp(buffer[INDICES[i], j]), name="rows")
    (gradient,) = te_gradient(rows, buffer)
    func = create_prim_func([INDICES, buffer], accumulate={gradient: buffer})
    indices = np.array([2, 0, 2, 2], "int32")
    before = GENERATOR.standard_normal((5, 3)).astype("float32")
    expected = before.copy()
    np.add.at(expected, indices, np.exp(before[indices]))
    np.testing.assert_allclose(run(func, indices, before)[1], expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_rounded_once(dtype):
    """If the term were rounded first, the sum would be a tie, rounded down to 2."""
    buffer = te.placeholder((1,), dtype, name="buffer")
    wide = te.placeholder((1,), "float32", name="wide")
    term = te.compute((1,), lambda i: (wide[i] * 2.0).astype(dtype), name="term")
    func = create_prim_func([wide, buffer], accumulate={term: buffer})
    numpy_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    epsilon = float(ml_dtypes.finfo(numpy_dtype).eps)
    half_a_term = np.array([(1 + 0.4 * epsilon) / 2], "float32")
    _, given = run(func, half_a_term, np.array([1 + epsilon], numpy_dtype))
    assert float(given[0]) == 2 + 2 * epsilon


def test_the_index_dtype_is_overridden():
    func = create_prim_func([A, C], {each(lambda i, j: C[j, i] * A[i, j]): C}, "int64")
    np.testing.assert_allclose(run(func, a, c)[1], c + c.T * a, rtol=1e-6)
    assert all(str(e.ty) == "int64" for param in func.params for e in param.ty.shape)


SCALARS = [te.placeholder((), "float32", name=f"scalar{i}") for i in range(2)]


def test_scalars():
    """Equality of tensors of rank 0 is an error to TVM: pairs never ask for it."""
    total = te.compute((), lambda: SCALARS[1]() * 2.0)
    for accumulate in ({total: SCALARS[0]}, [(total, SCALARS[0])]):
        func = create_prim_func(SCALARS, accumulate)
        given = run(func, *(np.full((), value, "float32") for value in (1, 3)))
        assert float(given[0]) == 7


def test_a_zero_element_buffer():
    empty = te.placeholder((0, 3), "float32", name="empty")
    func = create_prim_func([empty], {te.compute((0, 3), lambda i, j: empty[i, j] + 1.0): empty})
    assert run(func, np.zeros((0, 3), "float32"))[0].shape == (0, 3)


PLAIN = each(lambda i, j: A[i, j] * 2.0, name="plain")
OTHER_SHAPE = te.compute((4, 3), lambda i, j: A[i, j], name="narrow")
OTHER_DTYPE = te.compute((4, 4), lambda i, j: A[i, j].astype("float64"), name="double")
SYMBOLIC = te.placeholder((ROWS, 4), "float32", name="symbolic")


@pytest.mark.parametrize(
    ("args", "accumulate", "message"),
    [
        ([A, C], [(PLAIN, C), (each(lambda i, j: A[j, i]), C)], "two outputs .* buffer C"),
        ([A, C], {OTHER_SHAPE: C}, r"narrow .*\[4, 3\].* buffer C"),
        ([A, C], {OTHER_DTYPE: C}, "double .float64.* buffer C .float32"),
        ([A, SYMBOLIC], {PLAIN: SYMBOLIC}, "provably of one shape"),
        ([A], {PLAIN: C}, "buffer C.* once among the arguments; it is there 0"),
        ([A, C, C], {PLAIN: C}, "it is there 2"),
        ([A, PLAIN], {A: PLAIN}, "plain.* must be a placeholder"),
        ([A, C], {"plain": C}, "both tensors"),
        ([A, C], {PLAIN: "C"}, "both tensors"),
        ([A, C], [(PLAIN, C, A)], "list of such pairs"),
        ([A, C], "int64", "index_dtype_override="),
        ([A, C], {te.compute((4, 4), lambda i, j: B[j, i]): C}, "placeholder B"),
    ],
    ids=label,
)
def test_refusals(args, accumulate, message):
    with pytest.raises(ArgumentError, match=message):
        create_prim_func(args, accumulate)


def _stores_zeros(func):
    zeros = []
    tvm_ffi.structural_walk(
        func.body,
        (tirx.BufferStore, lambda s: zeros.append(s) if isinstance(s.value, tirx.FloatImm) else 0),
    )
    return bool(zeros)
