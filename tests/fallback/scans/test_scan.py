"""Gradients of recurrences: against differences, against torch, and of what they cost."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from graphgrad.errors import ArgumentError, MissingGradientError
from graphgrad.fallback import checkpointed, create_prim_func
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import operations, scan_body
from graphgrad.fallback.kinds import Kind, kind_of
from tests.fallback import recurrences
from tests.fallback.interpreter import evaluate, numpy_dtype
from tests.fallback.judge import KINK, SMOOTH, judge, with_heads
from tests.fallback.programs import Program
from tests.fallback.random_recurrences import random_recurrence
from tests.labels import label
from tests.peers import peer
from tests.running import compile_library

SECOND_ORDER = [
    recurrences.rnn, recurrences.no_step, recurrences.lag_two, recurrences.late_intermediate,
    recurrences.two_states, recurrences.gathered_in_a_row, recurrences.gathered_time,
    recurrences.half_the_time, recurrences.all_rows_before, recurrences.first_row,
    recurrences.flattened, recurrences.scan_in_a_step, recurrences.product_in_a_step,
    recurrences.integer_state,
]  # fmt: skip


def compiled(outputs, known):
    """Return the values of tensors as a compiled function computes them, into NaN."""
    run = compile_library(create_prim_func([*(tensor for tensor, _ in known), *outputs]))
    results = [
        tvm.runtime.tensor(np.full([int(e) for e in t.shape], np.nan, str(t.dtype)))
        for t in outputs
    ]
    run(*(tvm.runtime.tensor(array) for _, array in known), *results)
    return [result.numpy() for result in results]


@pytest.mark.parametrize("build", recurrences.ALL, ids=label)
def test_gradients_agree_with_differences(build):
    program = recurrences.program(build)
    assert judge(program, np.random.default_rng(1)) == SMOOTH


@pytest.mark.parametrize("build", SECOND_ORDER, ids=label)
def test_second_order_agrees_with_differences(build):
    generator = np.random.default_rng(2)
    _, gradients = with_heads(recurrences.program(build), generator)
    assert judge(gradients, generator) == SMOOTH


@pytest.mark.parametrize(("block", "of_its_shape"), [(0, 4), (1, 5), (2, 2), (3, 4)])
def test_random_steps_agree_with_differences(block, of_its_shape):
    programs = [random_recurrence(seed) for seed in range(6 * block, 6 * (block + 1))]
    programs = [program for program in programs if program is not None]
    assert len(programs) == of_its_shape
    for program in programs:
        assert judge(program, np.random.default_rng(1)) in (SMOOTH, KINK)


def test_a_loop_may_end_where_data_of_the_step_says():
    assert judge(random_recurrence(298), np.random.default_rng(1)) == SMOOTH


def test_forward_mode_is_the_gradient_by_the_head():
    """J v, from differentiating vᵀ J ȳ by ȳ."""
    generator = np.random.default_rng(3)
    program = recurrences.program(recurrences.lstm)
    heads, gradients = with_heads(program, generator)
    tangents = [te.placeholder(t.shape, "float64", name="tangent") for t in program.inputs]
    forward = te_gradient(gradients.outputs, [head for head, _ in heads], tangents)
    directions = [generator.standard_normal([int(e) for e in t.shape]) for t in tangents]
    given = evaluate(forward, [*gradients.known, *zip(tangents, directions, strict=True)])
    step = 1e-6
    ahead, behind = (
        evaluate(
            program.outputs,
            [(t, a + sign * step * d) for (t, a), d in zip(program.known, directions, strict=True)],
        )
        for sign in (1, -1)
    )
    for tangent, a, b in zip(given, ahead, behind, strict=True):
        np.testing.assert_allclose(tangent, (a - b) / (2 * step), atol=1e-8)


def torch_states(name, arrays):
    """Return the states of torch's own recurrence after each step, and its inputs."""
    torch = peer("torch")
    values = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in arrays]
    x, w, v, *init = values
    cell = getattr(torch, f"{name}_cell")
    biases = torch.zeros(len(w), dtype=torch.float64), torch.zeros(len(w), dtype=torch.float64)
    state = init[0][0] if len(init) == 1 else (init[0][0], init[1][0])
    states = [state]
    for row in x[1:]:
        states.append(cell(row, states[-1], w, v, *biases))
    if len(init) == 1:
        return [torch.stack(states)], values
    return [torch.stack(column) for column in zip(*states, strict=True)], values


@pytest.mark.parametrize(
    ("name", "build"),
    [("rnn_tanh", recurrences.rnn), ("lstm", recurrences.lstm), ("gru", recurrences.gru)],
    ids=["rnn", "lstm", "gru"],
)
def test_cells_over_time_agree_with_torch(name, build):
    generator = np.random.default_rng(4)
    program = recurrences.program(build)
    heads, gradients = with_heads(program, generator)
    arrays = {t.op.name: a for t, a in program.known}
    order = ["x", "w", "v", *(["h0", "c0"] if name == "lstm" else ["init"])]
    states, values = torch_states(name, [arrays[key] for key in order])
    total = sum(
        (s * peer("torch").tensor(h)).sum() for s, (_, h) in zip(states, heads, strict=True)
    )
    total.backward()
    expected = {key: value.grad.numpy() for key, value in zip(order, values, strict=True)}
    given = compiled([*program.outputs, *gradients.outputs], gradients.known)
    for array, state in zip(given, states, strict=False):
        np.testing.assert_allclose(array, state.detach().numpy(), atol=1e-12)
    for tensor, array in zip(program.inputs, given[len(states) :], strict=True):
        np.testing.assert_allclose(array, expected[tensor.op.name], atol=1e-10)


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
def test_the_lstm_of_topi_agrees_with_torch(backwards):
    """It computes in float32 alone, with two biases; torch's weights are in the same order."""
    torch = peer("torch")
    generator = np.random.default_rng(5)
    shapes = {
        "x": (4, 2, 3), "w": (16, 3), "v": (16, 4), "b": (16,), "c": (16,),
        "h0": (2, 4), "c0": (2, 4),
    }  # fmt: skip
    arrays = {n: generator.uniform(-1, 1, s).astype("float32") for n, s in shapes.items()}
    inputs = {n: te.placeholder(s, "float32", name=n) for n, s in shapes.items()}
    x, w, v, b, c, h0, c0 = inputs.values()
    outputs = topi.nn.lstm(x, w, v, b, c, h_init=h0, c_init=c0, reverse=backwards)
    known = [(inputs[n], arrays[n]) for n in shapes]
    heads, gradients = with_heads(Program(list(outputs), list(inputs.values()), known), generator)
    given = compiled([*outputs, *gradients.outputs], gradients.known)
    values = {
        n: torch.tensor(a, dtype=torch.float64, requires_grad=True) for n, a in arrays.items()
    }
    states = [(values["h0"], values["c0"])]
    for row in values["x"].flip(0) if backwards else values["x"]:
        parameters = [values[n] for n in "wvbc"]
        states.append(torch.lstm_cell(row, states[-1], *parameters))
    results = [torch.stack(column) for column in zip(*states[1:], strict=True)]
    torch.autograd.backward(results, [torch.tensor(h, dtype=torch.float64) for _, h in heads])
    expected = [*(r.detach() for r in results), *(value.grad for value in values.values())]
    for a, b in zip(given, expected, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("projected", [False, True], ids=["peepholes", "and-a-projection"])
def test_the_lstm_of_topi_with_peepholes_agrees_with_torch(projected):
    """Gates read the cells, too; the hidden state may be a product of fewer rows."""
    torch = peer("torch")
    generator = np.random.default_rng(6)
    hidden = 3 if projected else 4
    shapes = {
        "x": (3, 2, 3), "w": (16, 3), "v": (16, hidden), "h0": (2, hidden), "c0": (2, 4),
        "p_i": (2, 4), "p_f": (2, 4), "p_o": (2, 4), **({"proj": (3, 4)} if projected else {}),
    }  # fmt: skip
    arrays = {n: generator.uniform(-1, 1, s).astype("float32") for n, s in shapes.items()}
    inputs = {n: te.placeholder(s, "float32", name=n) for n, s in shapes.items()}
    others = {n: t for n, t in inputs.items() if n.startswith("p")}
    x, w, v, h0, c0 = (inputs[n] for n in ("x", "w", "v", "h0", "c0"))
    outputs = topi.nn.lstm(x, w, v, h_init=h0, c_init=c0, **others)
    known = [(inputs[n], arrays[n]) for n in shapes]
    heads, gradients = with_heads(Program(list(outputs), list(inputs.values()), known), generator)
    given = compiled([*outputs, *gradients.outputs], gradients.known)
    values = {
        n: torch.tensor(a, dtype=torch.float64, requires_grad=True) for n, a in arrays.items()
    }
    h, c = values["h0"], values["c0"]
    states = []
    for row in values["x"]:
        i, f, g, o = (row @ values["w"].T + h @ values["v"].T).chunk(4, dim=1)
        c_before = c
        c = torch.sigmoid(f + values["p_f"] * c_before) * c_before
        c = c + torch.sigmoid(i + values["p_i"] * c_before) * torch.tanh(g)
        h = torch.sigmoid(o + values["p_o"] * c) * torch.tanh(c)
        h = h @ values["proj"].T if projected else h
        states.append((h, c))
    results = [torch.stack(column) for column in zip(*states, strict=True)]
    torch.autograd.backward(results, [torch.tensor(h, dtype=torch.float64) for _, h in heads])
    expected = [*(r.detach() for r in results), *(value.grad for value in values.values())]
    for a, b in zip(given, expected, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_narrow_floats_sum_over_time_in_wide_ones(dtype):
    """The gradient by a weight sums 3,000 terms; one by one, float16 would lose most of them."""
    times = 3000
    one = np.ones((), "float32").astype(numpy_dtype(dtype))
    x, w = te.placeholder((times,), dtype, name="x"), te.placeholder((1,), dtype, name="w")
    state = te.placeholder((times,), dtype, name="state")
    init = te.compute((1,), lambda _: tirx.const(0.0, dtype), name="init")
    update = te.compute((times,), lambda t: state[t - 1] * tirx.const(0.0, dtype) + x[t] * w[0])
    (gradient,) = te_gradient(te.scan(init, update, state), [w])
    assert str(gradient.dtype) == dtype
    (given,) = compiled([gradient], [(x, np.full(times, one)), (w, np.full(1, one))])
    np.testing.assert_allclose(given.astype("float64"), [times - 1], rtol=5e-3)


@pytest.mark.parametrize("times", [0, 1, 6])
def test_the_number_of_times_may_be_symbolic(times):
    """One function for all of them, which gives what the functions for each give."""
    n = te.var("n", "int64")
    rows = 3

    def build(inputs, extent):
        x, w = inputs("x", extent, rows), inputs("w", rows, rows)
        init, state = inputs("init", 1, rows), inputs.state(extent, rows)
        k = te.reduce_axis((0, rows), name="k")
        mixed = te.compute(
            state.shape, lambda t, i: te.sum(w[i, k] * state[t - 1, k], axis=k), name="mixed"
        )
        update = te.compute(state.shape, lambda t, i: tirx.tanh(mixed[t, i]) + x[t, i], name="u")
        return [te.scan(init, update, state, name="symbolic")]

    generator = np.random.default_rng(6)
    program = recurrences.program(lambda inputs: build(inputs, times + 1))
    _, gradients = with_heads(program, generator)
    arrays = [array for _, array in gradients.known]
    inputs = recurrences.Inputs(0)
    outputs = build(inputs, n)
    head = te.placeholder((n, rows), "float64", name="head")
    symbolic = [*outputs, *te_gradient(outputs, inputs.floats, head)]
    run = compile_library(create_prim_func([*inputs.floats, head, *symbolic]))
    expected = evaluate([*program.outputs, *gradients.outputs], gradients.known)
    results = [tvm.runtime.tensor(np.full(array.shape, np.nan)) for array in expected]
    run(*map(tvm.runtime.tensor, arrays), *results)
    for result, array in zip(results, expected, strict=True):
        np.testing.assert_allclose(result.numpy(), array, atol=1e-12)


def test_what_does_not_depend_on_the_steps_is_summed_over_all_times_at_once():
    """Each weight's gradient is one contraction with the time among its loops, as by hand."""
    program = recurrences.program(recurrences.lstm)
    gradients = te_gradient(program.outputs, program.inputs)
    sums = {t.op.name: g.op for t, g in zip(program.inputs, gradients, strict=True)}
    for name, times in (("w", 5), ("v", 4)):
        assert kind_of(sums[name]) is Kind.CONTRACTION
        assert [int(axis.dom.extent) for axis in sums[name].reduce_axis] == [times, 2]
    (scan,) = {op for op in operations(*gradients) if isinstance(op, te.ScanOp)} - {
        op for op in operations(*program.outputs) if isinstance(op, te.ScanOp)
    }
    contractions = [op for op in scan_body(scan) if kind_of(op) is Kind.CONTRACTION]
    assert len(contractions) == 1


def test_constant_initial_states_get_no_steps_of_their_own():
    program = recurrences.program(recurrences.constant_start)
    gradients = te_gradient(program.outputs, program.inputs)
    rows = {
        int(op.output(0).shape[0]) for op in operations(*gradients) if isinstance(op, te.ScanOp)
    }
    assert rows == {5, 4}


@pytest.mark.parametrize("times", [10, 1000])
def test_a_long_recurrence_has_as_many_stages_as_a_short_one(times):
    program = recurrences.program(lambda inputs: recurrences.lstm(inputs, times=times))
    gradients = te_gradient(program.outputs, program.inputs)
    assert len(operations(*gradients)) < 60


def test_the_number_of_stages_grows_as_the_body_does():
    def stages(depth):
        x, init = te.placeholder((5, 2), "float64"), te.placeholder((1, 2), "float64")
        state = te.placeholder((5, 2), "float64")
        stage = te.compute((5, 2), lambda t, i: state[t - 1, i] * x[t, i])
        for _ in range(depth):
            stage = _tanh(stage)
        return len(operations(*te_gradient(te.scan(init, stage, state), [x, init])))

    few, more, most = stages(10), stages(20), stages(40)
    assert most - more == 2 * (more - few)


@pytest.mark.parametrize("every", [None, 2], ids=["scan", "checkpointed"])
@pytest.mark.parametrize("pads", [True, False])
def test_pads_are_made_only_where_they_may_be(every, pads):
    """The last element is read once at each step; beside it a border of zeros meets the ∞."""
    weights, init = te.placeholder((2,), "float64"), te.placeholder((1, 3), "float64")
    state, tap = te.placeholder((5, 3), "float64"), te.reduce_axis((0, 2))

    def body(t, i):
        before = tirx.if_then_else(i >= tap, state[t - 1, i - tap], 0.0)
        return te.sum(before * weights[tap], tap)

    states = te.scan(init, te.compute((5, 3), body, name="step"), state, inputs=[weights])
    output = topi.strided_slice(states, [4, 0], [5, 3])
    if every is not None:
        (output,) = checkpointed(states, every)
    gradient = te_gradient(output, [init], pads=pads)
    known = [(weights, np.array([0.5, np.inf])), (init, np.ones((1, 3)))]
    with np.errstate(invalid="ignore"):
        (given,) = evaluate(gradient, known)
    assert np.isnan(given[0, 2]) if pads else given[0, 2] == 0.5**4


def _tanh(tensor):
    return te.compute(tensor.shape, lambda *at: tirx.tanh(tensor(*at)), name="tanh")


@pytest.mark.parametrize("name", ["r", "S"], ids=["stage", "state"])
def test_the_gradient_by_what_is_inside_a_scan_is_refused(name):
    """The result does not depend on it as a whole: the gradient would be zero."""
    (states,) = recurrences.rnn(recurrences.Inputs(0))
    inside = [*states.op.state_placeholder, *states.op.update[0].op.input_tensors]
    (tensor,) = [t for t in inside if t.op.name == name]
    with pytest.raises(ArgumentError, match=f"{name} is inside the scan rnn"):
        te_gradient(states, [tensor])


def sorted_in_a_step():
    x, state = te.placeholder((1, 3), "float64"), te.placeholder((5, 3), "float64")
    before = te.compute((5, 3), lambda t, i: state[t - 1, i] * 2.0, name="before")
    return te.scan(x, topi.sort(before, axis=1), state, name="sorting"), x


def from_the_future():
    x, state = te.placeholder((1, 3), "float64"), te.placeholder((5, 3), "float64")
    update = te.compute((5, 3), lambda t, i: state[t, i] * 2.0, name="itself")
    return te.scan(x, update, state, name="circular"), x


@pytest.mark.parametrize(
    ("build", "names"),
    [(sorted_in_a_step, "sort_cpu.*ExternOp"), (from_the_future, "itself.*at the time")],
    ids=label,
)
def test_refusals_name_the_stage(build, names):
    output, x = build()
    with pytest.raises(MissingGradientError, match=names):
        te_gradient(output, [x])
    with pytest.raises(ArgumentError, match=names):
        create_prim_func([x, output])
