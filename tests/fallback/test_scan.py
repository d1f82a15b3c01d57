"""Gradients of recurrences: against differences, against torch, and of what they cost."""

import time

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from graphgrad.errors import MissingGradientError
from graphgrad.fallback import create_prim_func
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import operations, scan_body
from tests.fallback import recurrences
from tests.fallback.interpreter import evaluate
from tests.fallback.judge import SMOOTH, judge, with_heads
from tests.fallback.programs import Program
from tests.labels import label
from tests.peers import peer

SECOND_ORDER = [
    recurrences.rnn, recurrences.no_step, recurrences.lag_two, recurrences.late_intermediate,
    recurrences.two_states, recurrences.gathered_in_a_row, recurrences.gathered_time,
    recurrences.half_the_time, recurrences.all_rows_before, recurrences.first_row,
    recurrences.flattened, recurrences.scan_in_a_step, recurrences.product_in_a_step,
    recurrences.integer_state,
]  # fmt: skip


def compiled(outputs, known):
    """Return the values of tensors as a compiled function computes them, into NaN."""
    run = tvm.compile(create_prim_func([*(tensor for tensor, _ in known), *outputs]), "llvm")
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


def torch_states(name, arrays, double=True):
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
    arrays = dict((t.op.name, a) for t, a in program.known)
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
