"""Extern stages of topi: which function they are, and their gradients, against differences."""

import numpy as np
import pytest
from tvm import te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from graphgrad.errors import MissingGradientError, RuleError
from graphgrad.fallback import create_prim_func, externs
from graphgrad.fallback.externs import table
from graphgrad.fallback.gradient import te_gradient
from tests.fallback.differences import check, compiled
from tests.fallback.running import executable, unwritten
from tests.peers import peer

SHAPE = (2, 3, 4)


def placeholder(name, shape=SHAPE, dtype="float64"):
    return te.placeholder(shape, dtype, name=name)


def normal(*shape):
    return np.random.default_rng(7).standard_normal(shape or SHAPE)


def distinct(*shape):
    """Return values none of which are near each other."""
    count = int(np.prod(shape or SHAPE))
    return (np.random.default_rng(8).permutation(count) / 4 - 1.6).reshape(shape or SHAPE)


def listed(result):
    return [result] if isinstance(result, te.Tensor) else list(result)


@pytest.mark.parametrize("exclusive", [False, True], ids=["inclusive", "exclusive"])
@pytest.mark.parametrize("axis", [None, 1, -1])
@pytest.mark.parametrize("function", [topi.cumsum, topi.cumprod], ids=["cumsum", "cumprod"])
def test_cumulative(function, axis, exclusive):
    x, values = placeholder("x"), normal()
    values[0, 1, 2] = values[1, 1, 1] = values[1, 2, 1] = 0.0
    order = 2 if axis == 1 and not exclusive else 1
    output = function(x, axis, exclusive=exclusive)
    check([output], [(x, values)], forward=compiled, order=order)


def test_cumulative_in_another_dtype():
    x = placeholder("x", (5,), "float32")
    (gradient,) = te_gradient(topi.cumprod(x, 0, "float64"), x)
    values = np.arange(5, dtype="float32")
    given = compiled([gradient], [x])([values])[0]
    assert given.dtype == np.float32
    np.testing.assert_allclose(given, [34, 0, 0, 0, 0])


def test_narrow_floats_are_summed_in_float32():
    x = placeholder("x", (4096,), "float16")
    (gradient,) = te_gradient(topi.cumsum(x, 0), x)
    (given,) = compiled([gradient], [x])([np.zeros(4096, "float16")])
    assert given.dtype == np.float16
    np.testing.assert_array_equal(given, np.arange(4096, 0, -1).astype("float16"))


def test_cumulative_product_of_a_symbolic_size():
    x = te.placeholder((te.var("n", "int64"), 2), "float64", name="x")
    (gradient,) = te_gradient(topi.cumprod(x, 0), x)
    call = executable(create_prim_func([x, gradient]))
    torch = peer("torch")
    for count in (1, 4):
        leaf = torch.tensor(normal(count, 2), requires_grad=True)
        leaf.cumprod(0).sum().backward()
        _, given = call(leaf.detach().numpy(), *unwritten(gradient, n=count))
        np.testing.assert_allclose(given, leaf.grad.numpy(), rtol=1e-10)


@pytest.mark.parametrize("is_ascend", [False, True], ids=["descending", "ascending"])
@pytest.mark.parametrize("axis", [0, -1])
def test_sort(axis, is_ascend):
    x = placeholder("x")
    output = topi.sort(x, axis, is_ascend)
    check([output], [(x, distinct())], forward=compiled, order=2 if axis and is_ascend else 1)


@pytest.mark.parametrize(
    "axis, count, wanted", [(0, 1, "both"), (1, 2, "both"), (-1, 3, "values"), (-1, 0, "both")]
)
def test_topk(axis, count, wanted):
    x = placeholder("x")
    output = listed(topi.topk(x, count, axis, wanted, dtype="int32"))[0]
    check([output], [(x, distinct())], forward=compiled)


def test_places_have_no_gradient_whatever_type_they_are_of():
    x = placeholder("x")
    order = topi.argsort(x, dtype="float32")
    (gradient,) = te_gradient(order, x)
    assert not compiled([gradient], [x])([distinct()])[0].any()


def test_equal_values_are_sorted_as_by_torch():
    torch = peer("torch")
    x = placeholder("x", (6,))
    head = placeholder("head", (6,))
    values, cotangent = np.array([1.0, 0.0, 1.0, 2.0, 0.0, 1.0]), np.arange(6.0)
    (gradient,) = te_gradient(topi.sort(x), x, head)
    leaf = torch.tensor(values, requires_grad=True)
    torch.sort(leaf, stable=True).values.backward(torch.tensor(cotangent))
    given = compiled([gradient], [x, head])([values, cotangent])[0]
    np.testing.assert_array_equal(given, leaf.grad.numpy())


MODES = ["update", "add", "mul", "mean", "min", "max"]


@pytest.mark.parametrize(
    "axis, mode",
    [*((1, mode) for mode in MODES), (0, "update"), (0, "mul"), (2, "add"), (2, "max")],
)
def test_scatter_elements(axis, mode):
    """With indices that meet, that are negative, and fewer of them than there are data."""
    shape = (2, 2, 3)
    x, updates = placeholder("x"), placeholder("updates", shape)
    indices = placeholder("indices", shape, "int64")
    extent = SHAPE[axis]
    places = np.random.default_rng(axis).integers(-extent, extent, shape)
    inputs = [(x, distinct()), (updates, distinct(*shape) + 0.1)]
    output = topi.scatter_elements(x, indices, updates, axis, mode)
    order = 2 if mode == "mul" and axis == 1 else 1
    check([output], inputs, [(indices, places)], forward=compiled, order=order)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "mean"])
def test_scatter_nd(mode):
    x, updates = placeholder("x"), placeholder("updates", (5, 4))
    indices = placeholder("indices", (2, 5), "int32")
    places = np.array([[0, 1, 1, 0, 1], [2, 0, 0, 2, 0]], "int32")
    inputs = [(x, distinct()), (updates, distinct(5, 4) + 0.1)]
    output = topi.scatter_nd(x, indices, updates, mode)
    check([output], inputs, [(indices, places)], forward=compiled)


@pytest.mark.parametrize("accumulate", [False, True], ids=["replace", "accumulate"])
def test_index_put(accumulate):
    """With index tensors that are broadcast against each other."""
    x, values = placeholder("x"), placeholder("values", (6,))
    shapes = [(3, 1), (2,), (1,)]
    indices = [placeholder(f"i{n}", shape, "int64") for n, shape in enumerate(shapes)]
    places = [np.array([[0], [-1], [0]]), np.array([1, -2]), np.array([3])]
    others = list(zip(indices, places, strict=True))
    output = topi.index_put(x, tuple(indices), values, accumulate)
    check([output], [(x, normal()), (values, normal(6))], others, forward=compiled)


def test_writes_of_zero_factors_are_exact():
    """Where an element is multiplied with two zeros, nothing but each other's share is lost."""
    x, updates = placeholder("x", (2,)), placeholder("updates", (4,))
    indices = placeholder("indices", (4,), "int64")
    output = topi.scatter_elements(x, indices, updates, 0, "mul")
    gradients = te_gradient(output, [x, updates])
    given = compiled(gradients, [x, updates, indices])(
        [np.array([2.0, 3.0]), np.array([0.0, 5.0, 0.0, 7.0]), np.array([0, 0, 1, 0])]
    )
    np.testing.assert_array_equal(given[0], [0.0, 0.0])
    np.testing.assert_array_equal(given[1], [70.0, 0.0, 3.0, 0.0])


def test_of_equal_values_the_first_counts():
    x, updates = placeholder("x", (2,)), placeholder("updates", (3,))
    indices = placeholder("indices", (3,), "int64")
    output = topi.scatter_elements(x, indices, updates, 0, "max")
    gradients = te_gradient(output, [x, updates])
    given = compiled(gradients, [x, updates, indices])(
        [np.array([2.0, 0.0]), np.array([2.0, 1.0, 1.0]), np.array([0, 1, 1])]
    )
    np.testing.assert_array_equal(given[0], [1.0, 0.0])
    np.testing.assert_array_equal(given[1], [0.0, 1.0, 0.0])


@pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
def test_dft(inverse):
    x, y = placeholder("x", (2, 5)), placeholder("y", (2, 5))
    outputs = list(topi.signal.dft(x, y, inverse))
    # The angles of the forward pass are float32.
    check(outputs, [(x, normal(2, 5)), (y, distinct(2, 5))], forward=compiled, tolerance=1e-5)


@pytest.mark.parametrize("normalized", [False, True], ids=["plain", "normalized"])
def test_stft(normalized):
    x, window = placeholder("x", (2, 12)), placeholder("window", (4,))
    output = topi.signal.stft(x, 4, 2, 4, window, normalized, True, (2, 3, 5, 2))
    check([output], [(x, normal(2, 12)), (window, normal(4))], forward=compiled, tolerance=1e-5)


@pytest.mark.parametrize("label", [0, -1])
def test_get_valid_counts(label):
    boxes = placeholder("boxes", (2, 5, 3))
    output = topi.vision.get_valid_counts(boxes, 0.1, label, 1)[1]
    check([output], [(boxes, distinct(2, 5, 3) + 0.03)], forward=compiled)


def doubled(x, name, tag):
    """Return an extern stage that doubles, by loops of its own."""

    def build(inputs, outputs):
        i = tirx.Var("i", "int32")
        store = tirx.BufferStore(outputs[0], tirx.BufferLoad(inputs[0], [i]) * 2.0, [i])
        return tirx.For(i, 0, x.shape[0], tirx.ForKind.SERIAL, store)

    return te.extern([x.shape], [x], build, dtype=[str(x.dtype)], name=name, tag=tag)


def by_library(x, name, tag):
    """Return an extern stage of which its tag alone says that it doubles."""

    def build(inputs, outputs):
        return tirx.Evaluate(tirx.call_packed("my.doubling", *inputs, *outputs))

    return te.extern([x.shape], [x], build, dtype=[str(x.dtype)], name=name, tag=tag)


def test_unknown_stages_are_refused_by_name():
    x = placeholder("x", (3,))
    reason = r"the stage twice .* tag 'my_doubling'.* it calls my\.doubling"
    with pytest.raises(MissingGradientError, match=reason):
        te_gradient(by_library(x, "twice", "my_doubling"), x)


@pytest.mark.parametrize("tag", ["", *sorted(table._TABLE)])
def test_a_stage_is_known_by_what_it_does_not_by_its_tag(tag):
    x = placeholder("x", (3,))
    check([doubled(x, "twice", tag)], [(x, normal(3))], forward=compiled)
    with pytest.raises(MissingGradientError, match="the stage twice"):
        te_gradient(by_library(x, "twice", tag), x)


def test_loops_of_a_stage_between_others():
    """What they overwrite is theirs alone, and what they read is what other stages computed."""
    a = placeholder("a", (4, 4))
    positive = te.compute((4, 4), lambda i, j: a[i, j] + te.if_then_else(i == j, 3.0, 0.0))
    factor = cholesky(positive)
    output = te.compute((4,), lambda i: factor[i, i] * factor[3, i], name="output")
    check([output], [(a, normal(4, 4) * 0.3)], forward=compiled)


def cholesky(a):
    """Return the lower triangle by an extern stage whose loops overwrite their output."""

    def build(inputs, outputs):
        (x,), (y,) = inputs, outputs
        with IRBuilder() as builder, T.seq_scope():
            with T.serial(0, 4) as i, T.serial(0, 4) as j:
                below = tirx.if_then_else(j <= i, x[i, j], tirx.const(0.0, str(x.dtype)))
                T.buffer_store(y, below, [i, j])
            with T.serial(0, 4) as k:
                T.buffer_store(y, tirx.sqrt(y[k, k]), [k, k])
                with T.serial(0, 3 - k) as i:
                    T.buffer_store(y, y[i + k + 1, k] / y[k, k], [i + k + 1, k])
                with T.serial(0, 3 - k) as j, T.serial(0, 3 - k) as i, T.If(i >= j), T.Then():
                    row, column = i + k + 1, j + k + 1
                    rest = y[row, column] - y[row, k] * y[column, k]
                    T.buffer_store(y, rest, [row, column])
        return builder.get()

    return te.extern([a.shape], [a], build, dtype=[str(a.dtype)], name="cholesky")


def test_stages_can_be_registered(monkeypatch):
    monkeypatch.setattr(table, "_TABLE", dict(table._TABLE))
    externs.register("my_doubling", lambda op: [topi.multiply(op.inputs[0], 2.0)])
    x = placeholder("x", (3,))
    check([doubled(x, "twice", "my_doubling")], [(x, normal(3))], forward=compiled)
    assert te_gradient(by_library(x, "twice", "my_doubling"), x)
    with pytest.raises(RuleError, match="a tag and a function"):
        externs.register("my_doubling", None)


def test_what_is_read_twice_is_counted_once_for_each():
    """The stage reads a tensor, and one that depends on it."""
    x, indices = placeholder("x"), placeholder("indices", SHAPE, "int64")
    squares = te.compute(SHAPE, lambda *at: x(*at) * x(*at), name="squares")
    output = topi.scatter_elements(x, indices, squares, 2, "mul")
    places = np.random.default_rng(3).integers(0, 4, SHAPE)
    check([output], [(x, normal())], [(indices, places)], forward=compiled)


def test_places_and_values_of_one_stage():
    """The stage that gives the indices gives the updates too."""
    x, data = placeholder("x"), placeholder("data")
    values, indices = topi.topk(x, 2, 2)
    for mode in ("add", "update"):
        output = topi.scatter_elements(data, indices, values, 2, mode)
        check([output], [(x, distinct()), (data, normal())], forward=compiled)
