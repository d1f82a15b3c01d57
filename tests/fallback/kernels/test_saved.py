"""What a forward kernel saves for its gradient, and what is computed again."""

import pytest
from tvm import te, tirx, topi

import graphgrad as gg
from graphgrad.fallback.graph import operations
from graphgrad.fallback.kernels.expressions import kernel_of
from graphgrad.fallback.kernels.gradient import gradient_kernels, saved_output_count, saving_kernel
from graphgrad.fallback.kernels.saved import widen_saved, worth_saving
from tests.fallback.body_evaluations import body_evaluations


def placeholder(name, *shape, dtype="float64"):
    return te.placeholder(shape, dtype, name=name)


def saved(output, *inputs):
    """Return the names and shapes of what is saved of one output's forward pass."""
    head = te.placeholder(output.shape, str(output.dtype), name="head")
    gradients = gg.te_gradient(output, list(inputs), head)
    found = worth_saving([output], gradients, inputs)
    return [(tensor.op.name, [int(extent) for extent in tensor.shape]) for tensor in found]


def row_sums(x, name="total"):
    k = te.reduce_axis((0, x.shape[1]), name="k")
    return te.compute((x.shape[0],), lambda i: te.sum(te.exp(x(i, k)), axis=k), name=name)


def normalized(x):
    total = row_sums(x)
    return te.compute(x.shape, lambda i, j: te.sin(x(i, j)) / total(i), name="normalized")


def scores(x, y):
    """Return Σⱼ tanh(Σₖ x[i, k] y[j, k])."""
    k = te.reduce_axis((0, x.shape[1]), name="k")
    j = te.reduce_axis((0, y.shape[0]), name="j")
    shape = (x.shape[0], y.shape[0])
    score = te.compute(shape, lambda a, b: te.sum(x(a, k) * y(b, k), axis=k), name="score")
    return te.compute((shape[0],), lambda a: te.sum(te.tanh(score(a, j)), axis=j), name="scores")


def recurrence(steps=6, width=3):
    """Return one of two states, with what they are computed of."""
    x, w = placeholder("x", steps, width), placeholder("w", width, width)
    shown, hidden = (placeholder(name, steps, width) for name in ("shown", "hidden"))
    k = te.reduce_axis((0, width), name="k")
    product = te.compute(
        (steps, width), lambda t, i: te.sum(shown(t - 1, k) * w(k, i), axis=k), name="product"
    )
    next_hidden = te.compute(
        (steps, width),
        lambda t, i: (
            hidden(t - 1, i) * tirx.const(0.5, "float64") + te.tanh(product(t, i) + x(t, i))
        ),
    )
    next_shown = te.compute((steps, width), lambda t, i: te.sin(next_hidden(t, i)))
    starts = [te.compute((1, width), lambda _, i: x(0, i)) for _ in range(2)]
    states = te.scan(starts, [next_shown, next_hidden], [shown, hidden], name="states")
    return states, x, w


def test_a_sum_is_saved():
    x = placeholder("x", 4, 8)
    assert saved(normalized(x), x) == [("total", [4])]


def test_a_map_is_computed_again():
    x = placeholder("x", 4, 8)
    assert saved(topi.exp(topi.tanh(x)), x) == []


def test_what_a_map_is_computed_of_is_saved():
    x = placeholder("x", 4, 8)
    centered = topi.subtract(x, topi.expand_dims(topi.sum(topi.sin(x), axis=1), 1))
    ((_, shape),) = saved(topi.sum(topi.multiply(centered, topi.exp(centered)), axis=1), x)
    assert shape == [4]


def test_what_no_gradient_reads_is_not_saved():
    x = placeholder("x", 4, 8)
    total = topi.sum(x, axis=1)
    assert saved(topi.multiply(total, tirx.const(3.0, "float64")), x) == []


@pytest.mark.parametrize(("depth", "expected"), [(4, []), (16, [("score", [8, 8])])])
def test_nothing_larger_than_the_arguments_is_saved(depth, expected):
    x, y = placeholder("x", 8, depth), placeholder("y", 8, depth)
    assert saved(scores(x, y), x, y) == expected


@pytest.mark.parametrize(("gates", "expected"), [(8, True), (9, False)])
def test_beside_states_a_few_times_their_elements_are_saved(gates, expected):
    """The products of the inputs of a cell are larger than all that it takes and gives."""
    steps, width = 12, 4
    x, w = placeholder("x", steps, width), placeholder("w", width, gates * width)
    k = te.reduce_axis((0, width), name="k")
    product = te.compute(
        (steps, gates * width), lambda t, i: te.sum(x(t, k) * w(k, i), axis=k), name="product"
    )
    state = placeholder("state", steps, width)
    update = te.compute(
        (steps, width),
        lambda t, i: te.tanh(
            state(t - 1, i) + sum(te.sin(product(t, i + n * width)) for n in range(gates))
        ),
    )
    start = te.compute((1, width), lambda _, i: x(0, i))
    found = saved(te.scan(start, update, state), x, w)
    assert (("product", [steps, gates * width]) in found) == expected


def test_maps_in_front_of_a_loop_are_computed_again():
    """However many there are: the steps of the loop backwards compute them where they read them."""
    steps, width = 6, 4
    x, w = placeholder("x", steps, width), placeholder("w", width, width)
    k = te.reduce_axis((0, width), name="k")
    read = te.compute(
        (steps, width), lambda t, i: te.sum(x(t, k) * w(k, i), axis=k), name="product"
    )
    for _ in range(8):
        read = topi.tanh(read)
    state = placeholder("state", steps, width)
    update = te.compute((steps, width), lambda t, i: state(t - 1, i) * read(t, i))
    start = te.compute((1, width), lambda _, i: x(0, i))
    assert saved(te.scan(start, update, state), x, w) == [("product", [steps, width])]


def test_sum_over_a_symbolic_extent_is_saved():
    x = te.placeholder((te.var("n", "int64"), te.var("m", "int64")), "float64", name="x")
    output = normalized(x)
    (found,) = worth_saving([output], gg.te_gradient(output, [x]), [x])
    assert found.op.name == "total"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sum_of_narrow_floats_is_saved_in_float32(dtype):
    x = placeholder("x", 4, 8, dtype=dtype)
    kernel = saving_kernel(kernel_of([x], [normalized(x)]), 1, 1)
    assert [str(tensor.dtype) for tensor in kernel.results] == ["float32"]


def test_largest_of_narrow_floats_stays_narrow():
    x = placeholder("x", 4, 8, dtype="float16")
    largest = topi.max(x, axis=1)
    _, (kept,) = widen_saved([], [largest])
    assert kept.same_as(largest) and str(kept.dtype) == "float16"


def work(kernels):
    made = [*kernels.shared, *kernels.cotangents]
    return sum(stage.points for kernel in made for stage in body_evaluations(*kernel.results))


def test_what_is_saved_is_not_computed_again():
    x = placeholder("x", 4, 8)
    kernel = saving_kernel(kernel_of([x], [normalized(x)]), 1, 1)
    assert saved_output_count(kernel.func) == 1
    (gradient,) = gradient_kernels(kernel.func, 1, 2, [1]).cotangents
    assert ("output", 1) in gradient.arguments
    names = [op.name for op in operations(*gradient.results) if isinstance(op, te.ComputeOp)]
    assert "total" not in names


def test_states_that_are_not_returned_are_saved():
    (shown, _), x, w = recurrence()
    plain = kernel_of([x, w], [shown])
    kernel = saving_kernel(plain, 2, 1)
    assert [tensor.value_index for tensor in kernel.results] == [1]
    again, given = gradient_kernels(plain, 2, 1), gradient_kernels(kernel.func, 2, 2, [1])
    assert work(given) < work(again)
    assert len(given.shared) == len(again.shared) - 1, "the loop forwards is not among them"


def test_a_kernel_saves_once():
    x = placeholder("x", 4, 8)
    kernel = saving_kernel(kernel_of([x], [normalized(x)]), 1, 1)
    assert saving_kernel(kernel.func, 1, 2) is None


def test_a_kernel_that_was_not_made_here_stays_as_it_is():
    x = placeholder("x", 4, 8)
    assert saving_kernel(te.create_prim_func([x, normalized(x)]), 1, 1) is None
