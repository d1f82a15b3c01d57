"""`call_te` puts tensor expressions into Relax programs, as BlockBuilder.call_te takes them."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

import graphgrad as gg
from graphgrad.ir.tensor import Emitter
from tests.running import F64, function, run

X = np.linspace(-1, 1, 6).reshape(2, 3)
ONES = np.ones((2, 3))


def square(x):
    return te.compute(x.shape, lambda *i: x(*i) * x(*i), name="square")


def emitted(expression, **keywords):
    """Return a module whose main calls a function of its parameter x."""
    return function(lambda b, x: b.emit(gg.call_te(expression, x, **keywords)), ((2, 3), F64))


def test_kernel_is_named_by_the_function_or_by_the_caller():
    names = [
        {gv.name_hint for gv in mod.get_global_vars()} - {"main"}
        for mod in (
            emitted(square),
            emitted(square, name="mine"),
            emitted(lambda x: square(square(x))),
        )
    ]
    assert names == [{"square"}, {"mine"}, {"kernel"}]


def test_it_is_differentiated():
    value, gradient = run(gg.vjp(emitted(square)), "main_vjp", X, ONES)
    np.testing.assert_allclose(value, X * X)
    np.testing.assert_allclose(gradient, 2 * X)


def weighted(x, factors, axes, *, shift, mode):
    first, (second,) = factors
    assert (axes, mode) == ((0, 1), "wide")
    return te.compute(x.shape, lambda *i: x(*i) * first + second[i[1]] + shift, name="weighted")


def test_nested_and_named_arguments():
    def build(builder, x, y):
        return builder.emit(
            gg.call_te(weighted, x, [2.0, (y,)], (0, 1), shift=tirx.const(0.5, F64), mode="wide")
        )

    mod = gg.vjp(function(build, ((2, 3), F64), ((3,), F64)))
    y = np.arange(3.0)
    value, x_bar, y_bar = run(mod, "main_vjp", X, y, ONES)
    np.testing.assert_allclose(value, 2 * X + y + 0.5)
    np.testing.assert_allclose(x_bar, 2 * ONES)
    np.testing.assert_allclose(y_bar, [2, 2, 2])


def test_several_outputs():
    def both(x):
        return square(x), te.compute(x.shape, lambda *i: x(*i) * 3.0, name="triple")

    def build(builder, x):
        pair = builder.emit(gg.call_te(both, x))
        return builder.emit(relax.op.add(relax.TupleGetItem(pair, 0), relax.TupleGetItem(pair, 1)))

    value, gradient = run(gg.vjp(function(build, ((2, 3), F64))), "main_vjp", X, ONES)
    np.testing.assert_allclose(value, X * X + 3 * X)
    np.testing.assert_allclose(gradient, 2 * X + 3)


def test_shapes_and_extents():
    """A reshape whose target is a ShapeExpr, and a scale by an extent that no tensor has."""
    n = tirx.Var("n", "int64")

    def reshaped(x, shape, count):
        rows, columns = shape
        flat = tvm.topi.reshape(x, [rows, columns])
        return te.compute(flat.shape, lambda *i: flat(*i) * tirx.Cast(F64, count), name="scaled")

    x = relax.Var("x", relax.TensorType([n, 3], F64))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        y = builder.emit(gg.call_te(reshaped, x, relax.ShapeExpr([3, n]), n))
        builder.emit_func_output(y)
    mod = builder.get()
    assert [str(extent) for extent in mod["main"].ret_ty.shape] == ["T.int64(3)", "n"]
    value, gradient = run(gg.vjp(mod), "main_vjp", X, np.ones((3, 2)))
    np.testing.assert_allclose(value, 2 * X.reshape(3, 2))
    np.testing.assert_allclose(gradient, 2 * ONES)


def test_in_a_rule_it_takes_and_gives_tensors():
    x = relax.Var("x", relax.TensorType([2, 3], F64))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        doubled = Emitter(builder).lift(x) * 2.0
        result = gg.call_te(square, doubled)
        builder.emit_func_output((result + 1.0).expr)
    np.testing.assert_allclose(run(builder.get(), "main", X)[0], 4 * X * X + 1)


def test_expressions_are_emitted_once():
    def build(builder, x):
        shifted = relax.op.add(x, relax.const(1.0, F64))
        first = relax.TupleGetItem(builder.emit(relax.Tuple([x, x])), 0)

        def total(a, rest):
            return te.compute(a.shape, lambda *i: a(*i) * rest[0](*i) + rest[1](*i), name="total")

        return builder.emit(gg.call_te(total, shifted, [shifted, first]))

    mod = function(build, ((2, 3), F64))
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    calls = [value.op for value in values if isinstance(value, relax.Call)]
    assert calls.count(tvm.ir.Op.get("relax.add")) == 1
    value, gradient = run(gg.vjp(mod), "main_vjp", X, ONES)
    np.testing.assert_allclose(value, (X + 1) ** 2 + X)
    np.testing.assert_allclose(gradient, 2 * (X + 1) + 1)


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        (lambda x: relax.Tuple([x, x]), r"\(x0, x0\), a tuple of 2; give its tensors"),
        (lambda x: X, r"an array, of type ndarray, shape \(2, 3\) and dtype float64: give relax"),
        (lambda x: [tvm.runtime.tensor(X)], "an array, of type Tensor"),
        (lambda x: te.placeholder((2,), F64), r"a te\.Tensor; give the Relax value"),
        (lambda x: relax.If(relax.const(True), x, x), r"not been emitted; give what builder\.emit"),
    ],
    ids=["tuple", "array", "nested", "te", "unemitted"],
)
def test_arguments_that_are_refused(argument, error):
    with pytest.raises(gg.ArgumentError, match=f"(?s){error}"):
        function(lambda b, x: b.emit(gg.call_te(lambda *_: square, argument(x))), ((2, 3), F64))


def test_a_constant_array_is_read_as_a_tensor_or_as_numbers():
    weights = np.arange(3.0)

    def weighted(x, as_tensor, numbers):
        second = te.compute(x.shape, lambda i, j: x[i, j] * as_tensor[j], name="weighted")
        return te.compute(x.shape, lambda *i: second(*i) * sum(numbers), name="again")

    def build(builder, x):
        table = relax.const(weights, F64)
        return builder.emit(gg.call_te(weighted, x, table, weights.tolist()))

    _, gradient = run(gg.vjp(function(build, ((2, 3), F64))), "main_vjp", X, ONES)
    np.testing.assert_allclose(gradient, np.broadcast_to(3 * weights, (2, 3)))


@pytest.mark.parametrize(
    ("given", "error"),
    [((3,), "given 3; it takes a function"), ((square, "name"), "name=5 is no name")],
    ids=["function", "name"],
)
def test_functions_and_names_that_are_none(given, error):
    function_, *named = given
    with pytest.raises(gg.ArgumentError, match=error):
        gg.call_te(function_, **dict.fromkeys(named, 5))


def test_without_a_builder():
    x = relax.Var("x", relax.TensorType([2, 3], F64))
    with pytest.raises(gg.ArgumentError, match=r"inside `with builder\.function"):
        gg.call_te(square, x)


@pytest.mark.parametrize(
    ("result", "named"), [(None, "NoneType"), (3.0, "float"), ([], "list"), ([1], "list")], ids=str
)
def test_what_is_no_tensor_expression(result, named):
    with pytest.raises(gg.ArgumentError, match=rf"returned {named}.*returns one te\.Tensor"):
        emitted(lambda x: result)


def test_a_tensor_of_unknown_shape():
    with pytest.raises(gg.ArgumentError, match=r"known rank and shape.*match_cast"):
        x = relax.Var("x", relax.TensorType(ndim=2, dtype=F64))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            gg.call_te(square, x)
