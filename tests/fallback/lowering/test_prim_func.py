"""Functions of graphs of stages: which arguments they take, and what they compute."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from graphgrad.errors import ArgumentError
from graphgrad.fallback import create_prim_func
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.walk import identity
from tests.fallback.running import executable, run, unwritten
from tests.labels import label

X = te.placeholder((3, 4), "float32", name="x")
W = te.placeholder((4, 2), "float32", name="w")
Y = te.compute((3, 4), lambda i, j: tirx.exp(X[i, j]), name="y")
Z = te.compute((3, 4), lambda i, j: Y[i, j] + X[i, j], name="z")
SCALAR = te.compute((), lambda: X[0, 1] * 2.0, name="scalar")
PAIR = te.compute((3, 4), lambda i, j: (X[i, j] + 1.0, X[i, j] * 2.0), name="pair")
x = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")
VALUES = [(X, x), (Y, np.exp(x)), (Z, np.exp(x) + x), (SCALAR, x[0, 1] * 2)]
VALUES += [(PAIR[0], x + 1), (PAIR[1], x * 2)]


def value_of(tensor):
    return next(value for t, value in VALUES if t.same_as(tensor))


@pytest.mark.parametrize(
    "outputs",
    [
        [Z, Y],
        [Y, Z, Y, Y],
        [X],
        [X, Z, X],
        [PAIR[1]],
        [PAIR[1], PAIR[0], PAIR[1]],
        [SCALAR, SCALAR],
    ],
    ids=lambda outputs: " ".join(t.op.name for t in outputs),
)
def test_outputs(outputs):
    """Inner results, inputs, repeated ones, one of two: each is written."""
    func = create_prim_func([X, *outputs])
    assert len({identity(param) for param in func.params}) == 1 + len(outputs)
    given = run(func, x, *unwritten(*outputs))[1:]
    for tensor, array in zip(outputs, given, strict=True):
        np.testing.assert_allclose(array, value_of(tensor), rtol=1e-6)


def test_arguments_in_any_order():
    func = create_prim_func([Z, X, Y])
    given = run(func, *unwritten(Z), x, *unwritten(Y))
    np.testing.assert_allclose(given[0], value_of(Z), rtol=1e-6)
    np.testing.assert_allclose(given[2], value_of(Y), rtol=1e-6)


def test_tensors_without_elements():
    empty = te.placeholder((0, 3), "float32", name="empty")
    k = te.reduce_axis((0, 0), "k")
    outputs = [
        te.compute((0, 3), lambda i, j: empty[i, j] + 1.0),
        te.compute((3,), lambda j: te.sum(empty[k, j], axis=k)),
    ]
    func = create_prim_func([empty, *outputs, empty])
    given = run(func, np.zeros((0, 3), "float32"), *unwritten(*outputs, empty))
    assert [array.shape for array in given] == [(0, 3), (0, 3), (3,), (0, 3)]
    assert (given[2] == 0).all()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_symbolic_shapes(dtype):
    """Extents are read off the arguments; one that is not the extent of any is an argument."""
    n, m = te.var("n", dtype), te.var("m", dtype)
    rows = te.placeholder((n, m), "float32", name="rows")
    row = te.reduce_axis((0, n), "row")
    outputs = [
        te.compute((m,), lambda j: te.sum(rows[row, j], axis=row), name="sums"),
        te.compute((n * m,), lambda i: rows[i // m, i % m], name="flat"),
    ]
    call = executable(create_prim_func([rows, *outputs]))
    for shape in ((2, 3), (5, 1), (0, 2)):
        array = np.random.default_rng(1).standard_normal(shape).astype("float32")
        flat = np.full(array.size, np.nan, "float32")
        _, sums, flat = call(array, *unwritten(outputs[0], m=shape[1]), flat)
        np.testing.assert_allclose(sums, array.sum(0), rtol=1e-6)
        np.testing.assert_array_equal(flat, array.reshape(-1))

    pairs = te.placeholder((2 * n,), "float32", name="pairs")
    doubled = te.compute((2 * n,), lambda i: pairs[i] * 2.0, name="doubled")
    with pytest.raises(ArgumentError, match="the variables n are used, but are neither"):
        create_prim_func([pairs, doubled])
    _, given = run(create_prim_func([pairs, n, doubled]), x[0], 2, np.full(4, np.nan, "float32"))
    np.testing.assert_array_equal(given, x[0] * 2)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_scalar_variables(dtype):
    scale = te.var("scale", dtype)
    output = te.compute((3, 4), lambda i, j: X[i, j] * scale.astype("float32"))
    _, given = run(create_prim_func([X, scale, output]), x, 3, *unwritten(output))
    np.testing.assert_allclose(given, x * 3)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "int8", "uint8", "int64", "bool"]
)
def test_dtypes(dtype):
    tensor = te.placeholder((4,), dtype, name="tensor")
    array = np.array([0, 1, 1, 0]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    flipped = te.compute((4,), lambda i: tensor[3 - i])
    _, given, copied = run(
        create_prim_func([tensor, flipped, tensor]), array, *[array * array[0]] * 2
    )
    np.testing.assert_array_equal(given, array[::-1])
    np.testing.assert_array_equal(copied, array)


HANDLE = tvm.ir.Var("handle", tvm.ir.PointerType(tvm.ir.PrimType("float32")))
ALPHA = te.var("alpha", "float32")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([Z], "the stage .* reads the placeholder x, which is not among the arguments"),
        ([X, topi.matmul(X, W)], "reads the placeholder w"),
        ([X, 3, Z], "argument 1 is 3; it must be a tensor or a scalar variable"),
        ([X, tirx.const(3), Z], "argument 1 is"),
        ([X, HANDLE, Z], "argument 1 is"),
        ([X, topi.multiply(X, ALPHA)], "variables alpha"),
        ([X, ALPHA, ALPHA, topi.multiply(X, ALPHA)], "alpha is twice"),
    ],
    ids=label,
)
def test_refusals(args, message):
    with pytest.raises(ArgumentError, match=message):
        create_prim_func(args)


ROWS = te.var("rows", "int64")
INDICES = te.placeholder((ROWS,), "int32", name="indices")


def _symbolic(*shape):
    return te.placeholder(shape, "float32", name="table")


def test_several_scatters_with_symbolic_shapes():
    """Of stages with loops of their own, one feeding another."""
    vocabulary = te.var("vocabulary", "int64")
    table, head = _symbolic(vocabulary, 3), te.placeholder((ROWS, 3), "float32", name="head")
    rows = te.compute((ROWS, 3), lambda i, j: tirx.exp(table[INDICES[i], j]), name="rows")
    again = te.compute((ROWS, 3), lambda i, j: rows[INDICES[i], j], name="again")
    outputs = te_gradient(again, [table, rows], head)
    func = create_prim_func([table, INDICES, head, *outputs, *outputs])
    indices = np.array([2, 0, 2, 1], "int32")
    heads, tables = (np.random.default_rng(i).random((4 + i, 3)).astype("float32") for i in (0, 1))
    of_rows, of_table = np.zeros((4, 3)), np.zeros((5, 3))
    np.add.at(of_rows, indices, heads)
    np.add.at(of_table, indices, of_rows * np.exp(tables[indices]))
    empty = unwritten(*outputs, *outputs, rows=4, vocabulary=5)
    given = run(func, tables, indices, heads, *empty)[3:]
    for array, expected in zip(given, [of_table, of_rows] * 2, strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-5)


@pytest.mark.parametrize("inner", [True, False], ids=["between stages", "alone"])
def test_externs_of_topi(inner):
    first = topi.cumsum(X, axis=0)
    output = topi.cumsum(topi.exp(first), axis=1) if inner else first
    (given,) = run(create_prim_func([X, output]), x, *unwritten(output))[1:]
    expected = np.cumsum(np.exp(np.cumsum(x, 0)), 1) if inner else np.cumsum(x, 0)
    np.testing.assert_allclose(given, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "output",
    [Z, topi.matmul(X, W), topi.nn.softmax(X), topi.einsum("ij,jk->ik", X, W), topi.sum(X)],
    ids=["map", "matmul", "softmax", "einsum", "sum"],
)
def test_what_tvm_gets_right_is_left_to_it(output):
    inputs = [tensor for tensor in (X, W) if tensor.op.name == "x" or _reads(output, tensor)]
    stock = te.create_prim_func([*inputs, output])
    tvm.ir.assert_structural_equal(create_prim_func([*inputs, output]), stock)


def _reads(output, tensor):
    return any(t.same_as(tensor) for t in output.op.input_tensors)


def test_attributes_that_name_a_rewritten_tensor():
    """Those of topi's products name an operand, as one whose layout is free."""
    k = te.reduce_axis((0, 3), "k")
    right = te.compute((4, 2), lambda i, j: te.sum(X[k, i] * X[k, j], axis=k, where=k < 2))
    output = topi.nn.matmul(X, right)
    assert "layout_free_placeholders" in output.op.attrs
    (given,) = run(create_prim_func([X, output]), x, *unwritten(output))[1:]
    np.testing.assert_allclose(given, x @ (x[:2].T @ x[:2, :2]), rtol=1e-5)


def test_tvm_itself_writes_nothing_for_a_repeated_argument():
    """If this fails, TVM has mended it, and copies are not needed any more."""
    stock = te.create_prim_func([X, Y, Y])
    assert stock.params[1].same_as(stock.params[2])
