"""States of which the last rows alone are read: kept in few rows, and the same values."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback import create_prim_func
from tests.fallback import recurrences
from tests.fallback.interpreter import evaluate
from tests.fallback.lowered import allocated_bytes, buffers_of
from tests.fallback.running import run, unwritten
from tests.labels import label


def rows_of(program, outputs):
    """Return how many rows the buffers of a recurrence's states have, and compare the values."""
    func = create_prim_func([*(tensor for tensor, _ in program.known), *outputs])
    arrays = [array for _, array in program.known]
    given = run(func, *arrays, *unwritten(*outputs))[len(arrays) :]
    for a, b in zip(given, evaluate(outputs, program.known), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    names = {state.op.name for state in program.outputs[0].op.state_placeholder}
    return [int(buffer.ty.shape[0]) for buffer in buffers_of(func) if buffer.name in names]


@pytest.mark.parametrize(
    ("build", "rows"),
    [
        (recurrences.rnn, [2]),
        (recurrences.lstm, [2, 2]),
        (recurrences.two_states, [2, 2]),
        (recurrences.no_dimension_but_time, [2]),
        (recurrences.lag_two, [3]),
        (recurrences.late_intermediate, [3]),
        (recurrences.scan_in_a_step, [2]),
        (recurrences.one_step, [2]),
        (recurrences.no_step, [1]),
        (recurrences.half_the_time, [8]),
        (recurrences.all_rows_before, [6]),
        (recurrences.first_row, [5]),
        (recurrences.gathered_time, [6]),
    ],
    ids=label,
)
def test_a_state_has_as_many_rows_as_the_steps_look_back(build, rows):
    program = recurrences.program(build)
    assert rows_of(program, recurrences.last_rows(program).outputs) == rows


@pytest.mark.parametrize(
    ("row", "rows"),
    [(lambda i: 5 - i, 2), (lambda i: i + 3, 6), (lambda i: tirx.max(i, 5), 2)],
    ids=["last-two", "earlier", "clamped"],
)
def test_whoever_reads_earlier_rows_keeps_them(row, rows):
    program = recurrences.program(recurrences.rnn)
    (states,) = program.outputs
    read = te.compute((2, 2, 3), lambda i, b, h: states[row(i), b, h] * 2.0, name="read")
    assert rows_of(program, [read]) == [rows]


def test_one_reader_of_all_rows_keeps_them():
    program = recurrences.program(recurrences.lstm)
    hidden, cells = program.outputs
    last = te.compute((2, 3), lambda b, h: hidden[4, b, h] + cells[4, b, h], name="last")
    total = te.compute(cells.shape, lambda *at: cells(*at) * 2.0, name="total")
    assert rows_of(program, [last, total]) == [2, 5]


def test_a_scan_over_the_states_of_another_keeps_them():
    program = recurrences.program(recurrences.two_layers)
    outputs = recurrences.last_rows(program).outputs
    func = create_prim_func([*(tensor for tensor, _ in program.known), *outputs])
    rows = {buffer.name: int(buffer.ty.shape[0]) for buffer in buffers_of(func)}
    assert (rows["S"], rows["above"]) == (4, 2)


@pytest.mark.parametrize("times", [1, 2, 7])
def test_the_number_of_times_may_be_symbolic(times):
    n = te.var("n", "int32")
    x, state = te.placeholder((n, 3), "float64", name="x"), te.placeholder((n, 3), "float64")
    init = te.compute((1, 3), lambda _, i: x[0, i], name="init")
    update = te.compute((n, 3), lambda t, i: state[t - 1, 2 - i] * 0.5 + x[t, i], name="update")
    states = te.scan(init, update, state, name="states")
    last = te.compute((3,), lambda i: states[n - 1, i], name="last")
    func = create_prim_func([x, last])
    assert allocated_bytes(func) <= 8 * 3 * 3
    values = np.random.default_rng(1).standard_normal((times, 3))
    expected = values[0]
    for row in values[1:]:
        expected = expected[::-1] * 0.5 + row
    _, given = run(func, values, np.full(3, np.nan))
    np.testing.assert_allclose(given, expected, atol=1e-14)


def test_memory_does_not_grow_with_the_number_of_steps():
    def size(steps):
        init, state = te.placeholder((1, 3), "float64"), te.placeholder((steps, 3), "float64")
        update = te.compute((steps, 3), lambda t, i: tirx.sin(state[t - 1, 2 - i]), name="update")
        states = te.scan(init, update, state)
        last = te.compute((3,), lambda i: states[steps - 1, i], name="last")
        return allocated_bytes(create_prim_func([init, last]))

    assert size(64) == size(1024) == 2 * 3 * 8
