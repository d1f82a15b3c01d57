import numpy as np
import pytest
from tvm import relax, te, tirx

import graphgrad as gg
from graphgrad.check import samples
from graphgrad.ir.tensor import Emitter
from graphgrad.ops.legalize import LEGALIZATIONS
from graphgrad.registry.rule import all_rules
from graphgrad.registry.sample import TensorArgument
from tests import unknown_ops
from tests.differences import assert_gradients
from tests.running import F64, function, run

op = relax.op


def arrays(*shapes, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.uniform(-1, 1, shape) for shape in shapes]


def types(*shapes):
    return [(shape, F64) for shape in shapes]


def recurrence(builder, x, w, h):
    """A layer of tanh, whose weight the step transposes."""

    def step(h, x):
        h = op.tanh(op.add(x, op.matmul(h, op.permute_dims(w))))
        return h, h

    last, ys = gg.scan(step, h, x)
    return builder.emit(relax.Tuple([last, ys]))


def unrolled(x, w, h):
    ys = []
    for row in x:
        h = np.tanh(row + h @ w.T)
        ys.append(h)
    return h, np.stack(ys)


@pytest.mark.parametrize(
    "extents", [(4, 2), (1, 2), (4, "n"), ("t", "n")], ids=["static", "once", "batch", "time"]
)
def test_a_recurrence_and_its_gradient(extents):
    steps, batch = (tirx.Var(e, "int64") if isinstance(e, str) else e for e in extents)
    mod = function(recurrence, *types((steps, batch, 3), (3, 3), (batch, 3)))
    given = arrays((extents[0] if extents[0] == 1 else 4, 2, 3), (3, 3), (2, 3))
    for ours, theirs in zip(assert_gradients(mod, *given), unrolled(*given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_gradients_of_gradients_over_a_symbolic_time():
    """They are those over as many steps, known."""

    def sines(builder, x, h):
        def step(h, x):
            h = op.sin(op.add(h, x))
            return h, h

        last, ys = gg.scan(step, h, x)
        return builder.emit(relax.Tuple([last, ys]))

    results = []
    for steps in (tirx.Var("t", "int64"), 4):
        mod = function(sines, *types((steps, 3), (3,)))
        for name in ("main", "main_vjp"):
            mod = gg.vjp(mod, name)
        given = arrays((4, 3), (3,), (3,), (4, 3), (3,), (4, 3), (4, 3), (3,))
        results.append(run(mod, "main_vjp_vjp", *given))
    for symbolic, static in zip(*results, strict=True):
        np.testing.assert_allclose(symbolic, static, rtol=1e-12)


@pytest.mark.parametrize("whole", [True, False], ids=["read whole too", "read in parts"])
def test_a_concatenation_of_rows_and_state_that_is_taken_apart_again(whole):
    """What arrives at the row through a part of it is in its gradient, which is kept."""
    hidden, width = 3, 2

    def cell(builder, x, w, h, c):
        def step(state, x):
            h, c = state
            both = op.concat([x, h], axis=1)
            row, before = (
                op.strided_slice(both, [1], [begin], [end])
                for begin, end in ((0, width), (width, width + hidden))
            )
            read = op.multiply(both, op.tanh(both)) if whole else before
            gates = op.multiply(op.matmul(read, w), op.sum(op.sin(row), axis=[1], keepdims=True))
            i, f, o, u = (
                op.strided_slice(gates, [1], [k * hidden], [(k + 1) * hidden]) for k in range(4)
            )
            c = op.add(op.multiply(op.sigmoid(f), c), op.multiply(op.sigmoid(i), op.tanh(u)))
            return [op.multiply(op.sigmoid(o), op.tanh(c)), c], c

        (h, c), ys = gg.scan(step, [h, c], x)
        return builder.emit(relax.Tuple([h, ys]))

    reads = hidden + width if whole else hidden
    shapes = [(4, 2, width), (reads, 4 * hidden), (2, hidden), (2, hidden)]
    assert_gradients(function(cell, *types(*shapes)), *arrays(*shapes))


def test_it_is_one_kernel_and_what_does_not_change_is_before_it():
    mod = function(recurrence, *types((4, 2, 3), (3, 3), (2, 3)))
    calls = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    names = [call.op.name for call in calls if isinstance(call, relax.Call)]
    assert names[:2] == ["relax.permute_dims", "relax.call_tir"]
    assert names.count("relax.call_tir") == 1
    (kernel,) = [call for call in calls if isinstance(call, relax.Call) and call.ty_args]
    # The results are the carry behind each step, which is there once.
    assert isinstance(kernel.ty_args[0], relax.TensorType)


def test_outside_a_dataflow_block():
    builder = relax.BlockBuilder()
    x, w, h = (
        relax.Var(n, relax.TensorType(s, F64))
        for n, s in (("x", (4, 2, 3)), ("w", (3, 3)), ("h", (2, 3)))
    )
    with builder.function("main", [x, w, h]):
        builder.emit_func_output(recurrence(builder, x, w, h))
    given = arrays((4, 2, 3), (3, 3), (2, 3))
    np.testing.assert_allclose(run(builder.get(), "main", *given)[0], unrolled(*given)[0])


def test_nested_carries_rows_and_results():
    """With an integer in the carry, a None, a constant table, and a row that is not used."""
    table = relax.const(np.array([[2.0, 3.0, 5.0]]), F64)

    def build(builder, x, z, a, b):
        def step(carry, rows):
            (a, (count, b)), (x, _) = carry, rows
            choice = op.where(op.less(count, relax.const(2)), a, b)
            b = op.add(op.multiply(b, table), x)
            carry = [choice, (op.add(count, relax.const(1)), b)]
            return carry, (op.sin(choice), [None, count])

        start = [a, (relax.const(0), b)]
        (a, (count, b)), (ys, [_, counts]) = gg.scan(step, start, (x, z))
        return builder.emit(relax.Tuple([a, b, ys, count, counts]))

    mod = function(build, *types((3, 1, 3), (3, 2), (1, 3), (1, 3)))
    x, _, a, b = given = arrays((3, 1, 3), (3, 2), (1, 3), (1, 3))
    ys = []
    for number, row in enumerate(x):
        a = a if number < 2 else b
        b = b * [[2.0, 3.0, 5.0]] + row
        ys.append(np.sin(a))
    results = assert_gradients(mod, *given)
    for ours, theirs in zip(results, (a, b, np.stack(ys), 3, [0, 1, 2]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize(
    ("is_taken", "times"),
    [
        (lambda n: op.equal(n, relax.const(1, "int64")), 1),
        (lambda n: op.less(n, relax.const(2**40, "int64")), 3),
        (lambda n: op.logical_and(op.less(n, relax.const(2, "int64")), relax.const(True)), 2),
    ],
    ids=["equal", "large", "bool"],
)
def test_constants_in_the_body_have_a_dtype_of_their_own(is_taken, times):
    def build(builder, h):
        def step(carry, _):
            h, n = carry
            h = op.where(builder.emit(is_taken(n)), op.sin(h), h)
            return (h, op.add(n, relax.const(1, "int64"))), None

        (h, _), _ = gg.scan(step, (h, relax.const(0, "int64")), None, length=3)
        return h

    (h,) = arrays((2, 3))
    (last,) = assert_gradients(function(build, *types((2, 3))), h)
    for _ in range(times):
        h = np.sin(h)
    np.testing.assert_allclose(last, h, rtol=1e-12)


def test_windows_in_the_body():
    """What the loop backwards keeps of them has extents of int64, and its own loops are int32."""

    def build(builder, weights, image):
        def step(image, weight):
            z = builder.emit(op.nn.conv2d(image, weight, padding=1))
            z = builder.emit(op.nn.max_pool2d(z, (3, 3), padding=1))
            return op.tanh(z), None

        last, _ = gg.scan(step, image, weights)
        return last

    shapes = (3, 1, 1, 3, 3), (1, 1, 4, 6)
    (last,) = assert_gradients(function(build, *types(*shapes)), *arrays(*shapes))
    assert last.shape == (1, 1, 4, 6)


def test_no_step_leaves_the_carry():
    def build(builder, x, h):
        last, ys = gg.scan(lambda h, x: (op.add(h, x), op.exp(h)), h, x)
        return builder.emit(relax.Tuple([last, ys]))

    x, h = arrays((0, 3), (3,))
    last, ys = assert_gradients(function(build, *types((0, 3), (3,))), x, h)
    np.testing.assert_array_equal(last, h)
    assert ys.shape == (0, 3)


def test_a_length_in_the_place_of_rows():
    def build(builder, w, h):
        last, none = gg.scan(lambda h, _: (op.sin(op.multiply(h, w)), None), h, None, length=3)
        assert none is None
        return last

    w, h = arrays((3,), (3,))
    (last,) = assert_gradients(function(build, *types((3,), (3,))), w, h)
    np.testing.assert_allclose(last, np.sin(w * np.sin(w * np.sin(w * h))), rtol=1e-12)


def test_tensors_of_rules_and_a_loop_in_a_loop():
    """The inner loop multiplies a row's elements, the outer adds up the rows' products."""

    def build(builder, x, w):
        def multiply(product, factor):
            return product * factor, None

        def add(total, row):
            product, _ = gg.scan(multiply, outer.full(1.0, [], F64), row * w)
            return total + product, product

        outer = Emitter(builder)
        x, w = outer.lift(x), outer.lift(w)
        total, products = gg.scan(add, outer.full(0.0, [], F64), x)
        return builder.emit(relax.Tuple([total.expr, products.expr]))

    x, w = arrays((3, 4), (4,))
    total, products = assert_gradients(function(build, *types((3, 4), (4,))), x, w)
    np.testing.assert_allclose(products, (x * w).prod(1), rtol=1e-12)
    np.testing.assert_allclose(total, (x * w).prod(1).sum(), rtol=1e-12)


def test_results_that_depend_on_no_carry():
    def build(builder, x, h):
        last, ys = gg.scan(lambda h, x: (op.add(h, x), op.exp(x)), h, x)
        return builder.emit(relax.Tuple([last, ys]))

    x, h = arrays((3, 2), (2,))
    _, ys = assert_gradients(function(build, *types((3, 2), (2,))), x, h)
    np.testing.assert_allclose(ys, np.exp(x), rtol=1e-12)


def test_second_order():
    def build(builder, x, h):
        last, _ = gg.scan(lambda h, x: (op.sin(op.multiply(h, x)), None), h, x)
        return builder.emit(op.sum(last))

    first = gg.vjp(function(build, *types((3, 2), (2,))))
    assert_gradients(first, *arrays((3, 2), (2,)), np.float64(0.7), name="main_vjp")


def test_a_kernel_of_tensor_expressions_in_a_step():
    def square(x):
        return te.compute(x.shape, lambda *i: x(*i) * x(*i), name="square")

    def build(builder, x, h):
        def step(h, x):
            return op.add(gg.call_te(square, h), x), None

        return gg.scan(step, h, x)[0]

    x, h = arrays((3, 2), (2,))
    (last,) = assert_gradients(function(build, *types((3, 2), (2,))), x, h)
    for row in x:
        h = h * h + row
    np.testing.assert_allclose(last, h, rtol=1e-12)


PLACES = np.array([[2, 0, 2], [1, 1, 0]])


def scattered(h):
    h, updates = h.copy(), np.sin(h)
    for (row, column), place in np.ndenumerate(PLACES):
        h[row, place] += updates[row, column]
    return h


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda h: op.cumsum(h, axis=1), lambda h: np.cumsum(h, 1)),
        (lambda h: op.cumprod(h, axis=0, exclusive=True), lambda h: np.stack([h[0] * 0 + 1, h[0]])),
        (
            lambda h: op.scatter_elements(h, relax.const(PLACES), op.sin(h), 1, "add"),
            scattered,
        ),
    ],
    ids=["cumsum", "cumprod", "scatter"],
)
def test_ops_that_are_recurrences_or_scatters_in_a_step(change, same):
    """Their kernels compute all elements at once: a loop has them by other stages."""

    def build(builder, x, h):
        return gg.scan(lambda h, x: (op.add(change(op.sin(h)), x), None), h, x)[0]

    x, h = arrays((3, 2, 3), (2, 3))
    mod = function(build, *types((3, 2, 3), (2, 3)))
    (last,) = assert_gradients(mod, x, h)
    assert_gradients(gg.vjp(mod), x, h, *arrays((2, 3), seed=1), name="main_vjp")
    for row in x:
        h = same(np.sin(h)) + row
    np.testing.assert_allclose(last, h, rtol=1e-12)


def doubled(h, x):
    return op.concat([h, h], 0), None


def unlowered(h, x):
    return unknown_ops.unlowered(h), None


def packed(h, x):
    return unknown_ops.packed(h), None


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (doubled, "changes tensor 0 of the carry"),
        (unlowered, "graphgrad.test_unlowered"),
        (packed, "graphgrad.test_packed"),
        (lambda h, x: h, "returns \\(carry, y\\)"),
        (lambda h, x: ([h], None), "carry of the form \\(\\*\\)"),
        (lambda h, x: (1.0, None), "1.0 is no tensor"),
        (lambda h, x: (op.sort(h), None), r"in relax\.sort, .* cannot be part of a loop"),
        (lambda h, x: (h, op.argsort(h)), r"in relax\.argsort, .* cannot be part of a loop"),
        (lambda h, x: (h, op.unique(h)), r"known rank and shape.*unique.*match_cast"),
        (7, "given 7 for a body"),
    ],
    ids=[
        "type",
        "unlowered",
        "packed",
        "single",
        "form",
        "number",
        "sort",
        "order",
        "shape",
        "body",
    ],
)
def test_bodies_that_are_refused(body, error):
    with pytest.raises(gg.ArgumentError, match=error):
        function(lambda b, x, h: gg.scan(body, h, x)[0], *types((3, 4), (4,)))


def test_a_defect_of_a_lowering_is_seen_as_it_is(monkeypatch):
    def failing(builder, call):
        raise KeyError("a defect")

    monkeypatch.setitem(LEGALIZATIONS, "relax.tanh", failing)
    with pytest.raises(KeyError, match="a defect"):
        function(lambda b, h: gg.scan(lambda h, _: (op.tanh(h), None), h, None, 2)[0], *types((2,)))


@pytest.mark.parametrize(
    ("shape", "length", "error"),
    [((3, 2), 4, "disagree about how many steps"), ((), None, "rank 0"), (None, None, "a length")],
    ids=["lengths", "rank", "none"],
)
def test_rows_that_are_refused(shape, length, error):
    def build(builder, h, *x):
        return gg.scan(lambda h, x: (h, None), h, x[0] if x else None, length)[0]

    given = [(2,)] if shape is None else [(2,), shape]
    with pytest.raises(gg.ArgumentError, match=error):
        function(build, *types(*given))


@pytest.mark.parametrize("length", [-1, 2.0, "3", True, tirx.Var("n", "int32"), tirx.const(-2)])
def test_lengths_that_are_no_number_of_steps(length):
    def build(builder, h):
        return gg.scan(lambda h, x: (h, None), h, None, length)[0]

    with pytest.raises(gg.ArgumentError, match="is no number of steps; give an integer from 0 on"):
        function(build, *types((2,)))


@pytest.mark.parametrize("length", [np.int32(3), tirx.const(3, "int64")], ids=["numpy", "tvm"])
def test_a_length_may_be_any_integer(length):
    def build(builder, x, h):
        return gg.scan(lambda h, x: (op.add(h, x), None), h, x, length)[0]

    x, h = arrays((3, 2), (2,))
    mod = function(build, *types((3, 2), (2,)))
    np.testing.assert_allclose(run(mod, "main", x, h)[0], h + x.sum(0))


def test_there_must_be_a_function_to_write_into():
    h = relax.Var("h", relax.TensorType((2,), F64))
    with pytest.raises(gg.ArgumentError, match="writes into a BlockBuilder"):
        gg.scan(lambda h, _: (h, None), h, None, length=2)


WITH_LONG_EXTENTS = {
    "conv1d": lambda x: op.nn.conv1d(x, op.multiply(x, x), padding=2),
    "cumsum": lambda x: op.cumsum(x, axis=1),
    "pad": lambda x: op.nn.pad(x, [0, 0, 1, 0, 2, 1], "reflect"),
    "pixel_shuffle": lambda x: op.nn.pixel_shuffle(op.reshape(x, (1, 4, 1, 3)), 2),
    "repeat": lambda x: op.repeat(x, 2, 1),
    "reverse_sequence": lambda x: op.reverse_sequence(x, relax.const([2, 1], "int64"), 1, 0),
    "tile": lambda x: op.tile(x, [2, 1, 2]),
}
"""Ops whose lowerings make extents of int64."""


@pytest.mark.parametrize("name", WITH_LONG_EXTENTS)
def test_ops_with_long_extents(name):
    """What they compute is the carry, and stacked; it is that of steps written out."""
    call = WITH_LONG_EXTENTS[name]
    steps, shape = 3, (2, 2, 3)
    whole = function(lambda b, x: b.emit(call(x)), (shape, F64))["main"]
    result = [int(extent) for extent in whole.ret_ty.shape]

    def looped(builder, x, h):
        def step(h, x):
            y = relax.BlockBuilder.current().emit(call(x))
            return op.add(op.tanh(h), y), [y, h]

        last, ys = gg.scan(step, h, x)
        return builder.emit(relax.Tuple([last, *ys]))

    def written_out(builder, x, h):
        rows, carries = [], []
        for t in range(steps):
            row = builder.emit(op.strided_slice(x, [0], [t], [t + 1]))
            rows.append(builder.emit(call(builder.emit(op.reshape(row, shape)))))
            carries.append(h)
            h = builder.emit(op.add(op.tanh(h), rows[-1]))
        return builder.emit(relax.Tuple([h, op.stack(rows), op.stack(carries)]))

    kinds = types((steps, *shape), result)
    given = arrays((steps, *shape), result)
    ours = assert_gradients(function(looped, *kinds), *given)
    for a, b in zip(ours, run(function(written_out, *kinds), "main", *given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def tensors_of(argument):
    if isinstance(argument, TensorArgument):
        yield argument
    elif isinstance(argument, list):
        for item in argument:
            yield from tensors_of(item)


def samples_of_all_ops():
    """Yield ops and samples of known extents: the first and the last of each op."""
    for rule in all_rules():
        known = []
        for sample in rule.samples:
            extents = [d for t in tensors_of(list(sample.arguments)) for d in t.shape]
            if extents and not any(isinstance(extent, str) for extent in extents):
                known.append(pytest.param(rule.op, sample, id=f"{rule.op}-{sample}"))
        yield from [*known[:1], *known[1:][-1:]]


@pytest.mark.parametrize("name, sample", list(samples_of_all_ops()))
def test_every_op_is_part_of_a_loop_or_refused(name, sample):
    """By its name: an error of TVM's would say nothing of the loop."""

    def filled(argument, rows):
        if isinstance(argument, list):
            return [filled(item, rows) for item in argument]
        return next(rows) if isinstance(argument, TensorArgument) else argument

    def step(_, rows):
        builder, arguments = relax.BlockBuilder.current(), list(sample.arguments)
        y = builder.emit(samples._call(name, filled(arguments, iter(rows)), sample))
        if isinstance(y.ty, relax.TupleType):
            return None, [builder.emit(relax.TupleGetItem(y, i)) for i in range(len(y.ty.fields))]
        return None, [y]

    tensors = tensors_of(list(sample.arguments))
    kinds = [((2, *t.shape), F64 if t.dtype == "float" else t.dtype) for t in tensors]
    try:
        function(lambda b, *xs: b.emit(relax.Tuple(gg.scan(step, None, list(xs))[1])), *kinds)
    except gg.errors.ArgumentError as error:
        assert name in str(error)
