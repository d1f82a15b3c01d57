"""Recurrences that keep few of their states: gradients, memory and work against all states kept."""

import numpy as np
import pytest
from tvm import te, tirx, topi

from graphgrad.errors import ArgumentError
from graphgrad.fallback import checkpointed, create_prim_func
from graphgrad.fallback.gradient import te_gradient
from tests.fallback import recurrences
from tests.fallback.interpreter import evaluate, numpy_dtype
from tests.fallback.judge import SMOOTH, judge, with_heads
from tests.fallback.lowered import allocated_bytes, buffers_of, stores
from tests.fallback.programs import Program
from tests.fallback.random_recurrences import random_recurrence
from tests.fallback.running import run, unwritten
from tests.labels import label

SUPPORTED = [
    recurrences.rnn, recurrences.lstm, recurrences.cumulative_sum,
    recurrences.no_dimension_but_time, recurrences.lag_two, recurrences.late_intermediate,
    recurrences.two_states, recurrences.one_step, recurrences.no_step,
    recurrences.constant_start, recurrences.gathered_in_a_row, recurrences.gathered_from_a_stage,
    recurrences.time_last, recurrences.flattened, recurrences.scan_in_a_step,
    recurrences.extern_in_a_step, recurrences.product_in_a_step, recurrences.maximum_in_a_step,
    recurrences.integer_state, recurrences.no_recurrence, recurrences.two_layers,
]  # fmt: skip


def of_checkpoints(program, every=None):
    """Return the last rows of a recurrence's states by segments."""
    return Program(checkpointed(program.outputs, every), program.inputs, program.known)


def gradients_of(program, seed=1):
    """Return the program of the gradient by heads that depend on the seed alone."""
    return with_heads(program, np.random.default_rng(seed))[1]


def function(program):
    """Return a function of a program's placeholders and outputs."""
    return create_prim_func([*(tensor for tensor, _ in program.known), *program.outputs])


def compiled(program):
    """Return the values of a program's outputs, computed by a compiled function into NaN."""
    arrays = [array for _, array in program.known]
    return run(function(program), *arrays, *unwritten(*program.outputs))[len(arrays) :]


def product_of(states):
    """Return the product W x, which the steps read."""
    return next(t for t in states.op.update[0].op.input_tensors if t.op.name == "a")


def assert_same(given, expected, **tolerance):
    for a, b in zip(given, expected, strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.parametrize("build", SUPPORTED, ids=label)
def test_the_gradient_is_that_of_all_states_kept(build):
    whole = recurrences.last_rows(recurrences.program(build))
    program = of_checkpoints(recurrences.program(build), 2)
    for kept_all, by_segments in ((whole, program), (gradients_of(whole), gradients_of(program))):
        expected = evaluate(kept_all.outputs, kept_all.known)
        assert_same(evaluate(by_segments.outputs, by_segments.known), expected, atol=1e-12)


@pytest.mark.parametrize("every", [None, 1, 3, 7, 100], ids=lambda e: f"every-{e}")
def test_segments_may_have_any_length(every):
    def build(inputs):
        return recurrences.rnn(inputs, times=7)

    program = of_checkpoints(recurrences.program(build), every)
    whole = recurrences.last_rows(recurrences.program(build))
    derived, expected = gradients_of(program), gradients_of(whole)
    given, expected = (evaluate(p.outputs, p.known) for p in (derived, expected))
    assert_same(given, expected, atol=1e-12)


@pytest.mark.parametrize(
    "build", [recurrences.lstm, recurrences.lag_two, recurrences.scan_in_a_step], ids=label
)
def test_gradients_compile_to_what_they_mean(build):
    derived = gradients_of(of_checkpoints(recurrences.program(build), 2))
    assert_same(compiled(derived), evaluate(derived.outputs, derived.known), atol=1e-12)


@pytest.mark.parametrize("seed", [0, 3, 7, 11, 90], ids=lambda seed: f"seed-{seed}")
def test_random_steps(seed):
    program = random_recurrence(seed)
    whole, derived = (
        gradients_of(p) for p in (recurrences.last_rows(program), of_checkpoints(program, 1))
    )
    expected = evaluate(whole.outputs, whole.known)
    assert_same(evaluate(derived.outputs, derived.known), expected, rtol=1e-9, atol=1e-11)


def test_the_lstm_of_topi_backwards():
    """Its states are behind a stage that drops the initial ones; time and batch are flattened."""
    generator = np.random.default_rng(5)
    shapes = {"x": (5, 2, 3), "w": (16, 3), "v": (16, 4), "b": (16,)}
    inputs = {n: te.placeholder(s, "float32", name=n) for n, s in shapes.items()}
    known = [(inputs[n], generator.uniform(-1, 1, s).astype("float32")) for n, s in shapes.items()]
    x, w, v, b = inputs.values()
    hidden, _ = topi.nn.lstm(x, w, v, b, reverse=True)
    (states,) = hidden.op.input_tensors
    (last,) = checkpointed(states, 2)  # five steps: the first segment is shorter
    program = Program([last], list(inputs.values()), known)
    whole = Program([te.compute(last.shape, lambda _, *at: states(5, *at))], program.inputs, known)
    given, expected = (
        evaluate(p.outputs, p.known) for p in (gradients_of(program), gradients_of(whole))
    )
    assert_same(given, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("build", [recurrences.lag_two, recurrences.integer_state], ids=label)
def test_second_order_agrees_with_differences(build):
    derived = gradients_of(of_checkpoints(recurrences.program(build), 2))
    assert judge(derived, np.random.default_rng(2)) == SMOOTH


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_summed_over_segments_in_wide_ones(dtype):
    """The gradient by w sums 3,000 ones; one by one, float16 stops at 2048, bfloat16 at 256."""
    steps = 3000
    x, w = te.placeholder((steps + 1,), dtype, name="x"), te.placeholder((1,), dtype, name="w")
    state = te.placeholder((steps + 1,), dtype, name="state")
    init = te.compute((1,), lambda _: tirx.const(0, dtype), name="init")
    update = te.compute((steps + 1,), lambda t: state[t - 1] + x[t] * w[0], name="sum")
    (last,) = checkpointed(te.scan(init, update, state), 1)
    (gradient,) = te_gradient(last, [w])
    ones = [np.ones(n, "float32").astype(numpy_dtype(dtype)) for n in (steps + 1, 1)]
    *_, given = run(create_prim_func([x, w, gradient]), *ones, *unwritten(gradient))
    assert str(gradient.dtype) == dtype
    np.testing.assert_allclose(given.astype("float64"), [steps], rtol=5e-3)


def gradient_function(build, steps, kept_all, names=None):
    """Return a function of the gradient of the last states by some inputs."""
    program = recurrences.program(lambda inputs: build(inputs, times=steps))
    program = recurrences.last_rows(program) if kept_all else of_checkpoints(program)
    inputs = [t for t in program.inputs if names is None or t.op.name in names]
    gradients = te_gradient(program.outputs, inputs)
    return create_prim_func([*(tensor for tensor, _ in program.known), *gradients])


@pytest.mark.parametrize("build", [recurrences.rnn, recurrences.lstm], ids=label)
def test_memory_grows_as_the_root_of_the_number_of_steps(build):
    """Allocated are a + b √T bytes, exactly, for squares T; with all states kept, a + b T."""

    def sizes(kept_all):
        return [
            allocated_bytes(gradient_function(build, steps, kept_all, ("w", "v")))
            for steps in (64, 256, 1024)
        ]

    few, more, most = sizes(kept_all=False)
    assert most - more == 2 * (more - few)
    kept_few, kept_more, kept_most = sizes(kept_all=True)
    assert kept_most - kept_more == 4 * (kept_more - kept_few)
    assert 19 * most < kept_most


def test_the_weights_gradients_are_kept_once():
    """Not for each segment: wider inputs add to memory as much for few segments as for many."""

    def size(steps, width):
        def build(inputs, times):
            x, w = inputs("x", times + 1, 2, width), inputs("w", 3, width)
            init, state = inputs("init", 1, 2, 3), inputs.state(times + 1, 2, 3)
            a = recurrences.product(x, w, "a")
            update = te.compute(
                state.shape, lambda t, b, h: tirx.tanh(a[t, b, h] + state[t - 1, b, h]), name="u"
            )
            return [te.scan(init, update, state)]

        return allocated_bytes(gradient_function(build, steps, False, ("w",)))

    assert size(64, 50) - size(64, 10) == size(256, 50) - size(256, 10)


def test_the_work_is_that_of_two_more_forwards():
    """One for the states of a segment, one for what else its steps compute."""

    def build(inputs, times):
        return recurrences.rnn(inputs, times, width=16)

    program = recurrences.program(lambda inputs: build(inputs, 64))
    forward = stores(function(recurrences.last_rows(program)).body)
    kept_all, by_segments = (
        stores(gradient_function(build, 64, kept).body) for kept in (True, False)
    )
    # And the products of the inputs, which are there once where all is kept.
    assert by_segments - kept_all < 2.6 * forward


def test_steps_read_what_is_given_as_it_is():
    """A stage before the scan is computed anew by each segment, unless it is among the inputs."""
    program = recurrences.program(recurrences.rnn)
    (states,) = program.outputs
    product = product_of(states)
    for inputs, shape in ([[], [2, 2, 3]], [[product], [6, 2, 3]]):
        (last,) = checkpointed(states, 2, inputs)
        func = create_prim_func([*(tensor for tensor, _ in program.known), last])
        shapes = [list(map(int, b.ty.shape)) for b in buffers_of(func) if b.name == "a"]
        assert max(shapes) == shape


def symbolic(inputs):
    return recurrences.rnn(inputs, times=te.var("n", "int32"))


@pytest.mark.parametrize("every", [2, 100], ids=["segments", "one-segment"])
def test_the_gradient_by_what_is_computed_anew_is_refused(every):
    """It would be zero, as the last rows depend on copies alone; what is kept has one."""
    program = recurrences.program(recurrences.rnn)
    (states,) = program.outputs
    product = product_of(states)
    with pytest.raises(ArgumentError, match=r"a is inside the scan rnn.*inputs of checkpointed"):
        te_gradient(checkpointed(states, every), [product])
    given = te_gradient(checkpointed(states, every, [product]), [product])
    expected = te_gradient(recurrences.last_rows(program).outputs, [product])
    assert_same(evaluate(given, program.known), evaluate(expected, program.known), atol=1e-12)


def test_inputs_that_depend_on_the_states_are_refused():
    (states,) = recurrences.rnn(recurrences.Inputs(0))
    with pytest.raises(ArgumentError, match="input rnn_update depends on a state of the scan rnn"):
        checkpointed(states, 2, [states.op.update[0]])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (recurrences.half_the_time, "scan halves reads the state S at another time than the 1"),
        (recurrences.gathered_time, "scan jumps reads the state S"),
        (recurrences.all_rows_before, "scan history reads the state S"),
        (recurrences.first_row, "scan first_row reads the state S"),
        (symbolic, "scan rnn runs for n steps.*constant"),
        (recurrences.last_row, "last is not what one te.scan returns"),
    ],
    ids=label,
)
def test_refusals_name_the_scan(build, message):
    with pytest.raises(ArgumentError, match=message):
        checkpointed(build(recurrences.Inputs(0)))


def test_segments_without_steps_are_refused():
    with pytest.raises(ArgumentError, match="every 0 steps"):
        checkpointed(recurrences.rnn(recurrences.Inputs(0)), 0)
