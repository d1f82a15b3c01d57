"""Recurrences written as scans: cells of networks, and everything odd that a step may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te, tirx, topi

from tests.fallback.programs import Program

Build = Callable[["Inputs"], list[te.Tensor]]


class Inputs:
    """Placeholders as a recurrence asks for them, with random values."""

    def __init__(self, seed: int, dtype: str = "float64"):
        self.generator = np.random.default_rng(seed)
        self.dtype = dtype
        self.floats: list[te.Tensor] = []
        self.known: list[tuple[te.Tensor, np.ndarray]] = []

    def __call__(self, name: str, *shape: Any) -> te.Tensor:
        """Return a placeholder of floats; it gets values if its shape is known."""
        tensor = te.placeholder(shape, self.dtype, name=name)
        self.floats.append(tensor)
        if all(isinstance(extent, int) for extent in shape):
            values = self.generator.uniform(-1.2, 1.2, shape).astype(self.dtype)
            self.known.append((tensor, values))
        return tensor

    def integers(self, name: str, values: Any) -> te.Tensor:
        """Return a placeholder of given integers."""
        array = np.asarray(values, "int32")
        tensor = te.placeholder(array.shape, "int32", name=name)
        self.known.append((tensor, array))
        return tensor

    def state(self, *shape: Any, name: str = "S") -> te.Tensor:
        """Return the placeholder of a state."""
        return te.placeholder(shape, self.dtype, name=name)


def last_rows(program: Program) -> Program:
    """Return the last rows of a recurrence's states, as many as it looks back."""

    def last(state: te.Tensor) -> te.Tensor:
        lag = state.op.init[0].shape[0]
        first = state.shape[0] - lag
        return te.compute(
            (lag, *state.shape[1:]), lambda i, *rest: state(first + i, *rest), name="last_rows"
        )

    return Program([last(state) for state in program.outputs], program.inputs, program.known)


def program(build: Build, seed: int = 0, dtype: str = "float64") -> Program:
    """Return a recurrence with its inputs of floats and random values."""
    inputs = Inputs(seed, dtype)
    outputs = build(inputs)
    return Program(outputs, inputs.floats, inputs.known)


def product(x: te.Tensor, w: te.Tensor, name: str, late: int = 0) -> te.Tensor:
    """Return x[t, b, :] · w[h, :], of the row some times ago."""
    k = te.reduce_axis((0, w.shape[1]), name="k")
    return te.compute(
        (*x.shape[:2], w.shape[0]),
        lambda t, b, h: te.sum(x[t - late, b, k] * w[h, k], axis=k),
        name=name,
    )


def rnn(inputs: Inputs, times: Any = 5, batch: int = 2, width: int = 3) -> list[te.Tensor]:
    """h = tanh(W x + V h)"""
    x, w, v = inputs("x", times + 1, batch, 4), inputs("w", width, 4), inputs("v", width, width)
    init, state = inputs("init", 1, batch, width), inputs.state(times + 1, batch, width)
    a, r = product(x, w, "a"), product(state, v, "r", late=1)
    update = te.compute(
        state.shape, lambda t, b, h: tirx.tanh(a[t, b, h] + r[t, b, h]), name="rnn_update"
    )
    return [te.scan(init, update, state, name="rnn")]


def lstm(inputs: Inputs, times: int = 4, batch: int = 2, width: int = 3) -> list[te.Tensor]:
    """c = f · c + i · g, h = o · tanh(c)"""
    x, w, v = (
        inputs("x", times + 1, batch, 4),
        inputs("w", 4 * width, 4),
        inputs("v", 4 * width, width),
    )
    inits = [inputs("h0", 1, batch, width), inputs("c0", 1, batch, width)]
    h = inputs.state(times + 1, batch, width, name="h")
    c = inputs.state(times + 1, batch, width, name="c")
    a, r = product(x, w, "a"), product(h, v, "r", late=1)
    gates = te.compute(a.shape, lambda t, b, j: a[t, b, j] + r[t, b, j], name="gates")

    def gate(number: int, function: Any, t: Any, b: Any, j: Any) -> Any:
        return function(gates[t, b, number * width + j])

    cell = te.compute(
        c.shape,
        lambda t, b, j: (
            gate(1, tirx.sigmoid, t, b, j) * c[t - 1, b, j]
            + gate(0, tirx.sigmoid, t, b, j) * gate(2, tirx.tanh, t, b, j)
        ),
        name="cell",
    )
    hidden = te.compute(
        h.shape,
        lambda t, b, j: gate(3, tirx.sigmoid, t, b, j) * tirx.tanh(cell[t, b, j]),
        name="hidden",
    )
    return te.scan(inits, [hidden, cell], [h, c], name="lstm")


def gru(inputs: Inputs, times: int = 4, batch: int = 2, width: int = 3) -> list[te.Tensor]:
    """h = (1 - z) · n + z · h"""
    x, w, v = (
        inputs("x", times + 1, batch, 4),
        inputs("w", 3 * width, 4),
        inputs("v", 3 * width, width),
    )
    init, state = inputs("init", 1, batch, width), inputs.state(times + 1, batch, width)
    a, r = product(x, w, "a"), product(state, v, "r", late=1)

    def gate(number: int) -> te.Tensor:
        def body(t: Any, b: Any, j: Any) -> Any:
            place = number * width + j
            return tirx.sigmoid(a[t, b, place] + r[t, b, place])

        return te.compute(state.shape, body, name=f"gate{number}")

    reset, keep = gate(0), gate(1)
    new = te.compute(
        state.shape,
        lambda t, b, j: tirx.tanh(a[t, b, 2 * width + j] + reset[t, b, j] * r[t, b, 2 * width + j]),
        name="new",
    )
    update = te.compute(
        state.shape,
        lambda t, b, j: (1.0 - keep[t, b, j]) * new[t, b, j] + keep[t, b, j] * state[t - 1, b, j],
        name="gru_update",
    )
    return [te.scan(init, update, state, name="gru")]


def cumulative_sum(inputs: Inputs) -> list[te.Tensor]:
    """TVM's own example: s = s + x, from the first row of x."""
    x, state = inputs("x", 6, 3), inputs.state(6, 3)
    init = te.compute((1, 3), lambda _, i: x[0, i], name="init")
    update = te.compute((6, 3), lambda t, i: state[t - 1, i] + x[t, i], name="sum")
    return [te.scan(init, update, state, inputs=[x], name="cumsum")]


def no_dimension_but_time(inputs: Inputs) -> list[te.Tensor]:
    """s = x · s"""
    x, init, state = inputs("x", 6), inputs("init", 1), inputs.state(6)
    update = te.compute((6,), lambda t: x[t] * state[t - 1] + x[t], name="horner")
    return [te.scan(init, update, state, name="polynomial")]


def lag_two(inputs: Inputs) -> list[te.Tensor]:
    """s[t] = a · s[t-1] + b · s[t-2] + sin s[t-1] · s[t-2]"""
    init, factors, state = inputs("init", 2, 3), inputs("factors", 2), inputs.state(7, 3)
    update = te.compute(
        (7, 3),
        lambda t, i: (
            factors[0] * state[t - 1, i]
            + factors[1] * state[t - 2, i]
            + tirx.sin(state[t - 1, i]) * state[t - 2, 2 - i]
        ),
        name="update",
    )
    return [te.scan(init, update, state, name="second_order")]


def late_intermediate(inputs: Inputs) -> list[te.Tensor]:
    """A stage of the step is read at this time and at the one before."""
    init, x, state = inputs("init", 2, 3), inputs("x", 6, 3), inputs.state(6, 3)
    squares = te.compute((6, 3), lambda t, i: state[t - 1, i] * state[t - 1, i] * x[t, i], name="q")
    update = te.compute(
        (6, 3),
        lambda t, i: tirx.if_then_else(t > 2, squares[t - 1, i], 0.5) + 0.3 * squares[t, i],
        name="update",
    )
    return [te.scan(init, update, state, name="late")]


def two_states(inputs: Inputs) -> list[te.Tensor]:
    """Two states of different shapes, each made of both."""
    a0, b0, w = inputs("a0", 1, 3), inputs("b0", 1, 3, 2), inputs("w", 3, 2)
    a, b = inputs.state(5, 3, name="a"), inputs.state(5, 3, 2, name="b")
    k = te.reduce_axis((0, 2), name="k")
    total = te.compute((5, 3), lambda t, i: te.sum(b[t - 1, i, k] * w[i, k], axis=k), name="total")
    next_a = te.compute((5, 3), lambda t, i: tirx.cos(a[t - 1, i]) + total[t, i], name="next_a")
    next_b = te.compute(
        (5, 3, 2), lambda t, i, j: 0.5 * b[t - 1, i, 1 - j] * next_a[t, i] + w[i, j], name="next_b"
    )
    return te.scan([a0, b0], [next_a, next_b], [a, b], name="coupled")


def last_row(inputs: Inputs) -> list[te.Tensor]:
    """Only the last state is used."""
    (states,) = rnn(inputs)
    last = states.shape[0] - 1
    return [te.compute(states.shape[1:], lambda b, h: states[last, b, h] * 2.0, name="last")]


def one_step(inputs: Inputs) -> list[te.Tensor]:
    return rnn(inputs, times=1)


def no_step(inputs: Inputs) -> list[te.Tensor]:
    return rnn(inputs, times=0)


def constant_start(inputs: Inputs) -> list[te.Tensor]:
    """The first state is no input, so its cotangent is not computed."""
    x, state = inputs("x", 5, 3), inputs.state(5, 3)
    init = te.compute((1, 3), lambda _, i: tirx.const(0.5, inputs.dtype), name="init")
    update = te.compute((5, 3), lambda t, i: tirx.sin(state[t - 1, i] * x[t, i]), name="update")
    return [te.scan(init, update, state, name="constant_start")]


def gathered_in_a_row(inputs: Inputs) -> list[te.Tensor]:
    """Each element reads one of the row before that depends on data."""
    init, x, state = inputs("init", 1, 4), inputs("x", 6, 4), inputs.state(6, 4)
    place = inputs.integers("place", inputs.generator.integers(0, 4, (6, 4)))
    update = te.compute(
        (6, 4), lambda t, i: state[t - 1, place[t, i]] * x[t, i] + 0.5 * state[t - 1, i], name="u"
    )
    return [te.scan(init, update, state, name="gathered")]


def gathered_from_a_stage(inputs: Inputs) -> list[te.Tensor]:
    """Each element reads one of a stage of the step that depends on data of that time."""
    init, w, state = inputs("init", 1, 4), inputs("w", 4, 4), inputs.state(5, 4)
    place = inputs.integers("place", inputs.generator.integers(0, 4, (5, 4)))
    k = te.reduce_axis((0, 4), name="k")
    mixed = te.compute((5, 4), lambda t, i: te.sum(w[i, k] * state[t - 1, k], axis=k), name="mixed")
    update = te.compute(
        (5, 4), lambda t, i: tirx.tanh(mixed[t, place[t, i]]) + 0.2 * mixed[t, i], name="update"
    )
    return [te.scan(init, update, state, name="chosen")]


def gathered_time(inputs: Inputs) -> list[te.Tensor]:
    """Which of the rows before is read depends on data."""
    init, x, state = inputs("init", 1, 3), inputs("x", 6, 3), inputs.state(6, 3)
    times = inputs.integers("times", [0, 0, 1, 0, 2, 1])
    update = te.compute(
        (6, 3), lambda t, i: tirx.sin(state[times[t], i]) * x[t, i] + state[t - 1, i], name="u"
    )
    return [te.scan(init, update, state, name="jumps")]


def half_the_time(inputs: Inputs) -> list[te.Tensor]:
    """The row of half the time is read."""
    init, x, state = inputs("init", 1, 3), inputs("x", 8, 3), inputs.state(8, 3)
    update = te.compute(
        (8, 3), lambda t, i: tirx.sin(state[tirx.floordiv(t, 2), i]) * x[t, i], name="update"
    )
    return [te.scan(init, update, state, name="halves")]


def all_rows_before(inputs: Inputs) -> list[te.Tensor]:
    """A weighted sum of all rows before."""
    init, w, state = inputs("init", 1, 3), inputs("w", 6, 6), inputs.state(6, 3)
    r = te.reduce_axis((0, 6), name="r")
    history = te.compute(
        (6, 3),
        lambda t, i: te.sum(tirx.if_then_else(r < t, w[t, r] * tirx.sin(state[r, i]), 0.0), axis=r),
        name="history",
    )
    update = te.compute((6, 3), lambda t, i: history[t, i] + 0.1, name="update")
    return [te.scan(init, update, state, name="history")]


def triangular(inputs: Inputs) -> list[te.Tensor]:
    """The same by a reduction whose extent is the time."""
    init, w, state = inputs("init", 1, 3), inputs("w", 6, 6), inputs.state(6, 3)

    def body(t: Any, i: Any) -> Any:
        r = te.reduce_axis((0, t), name="r")
        return te.sum(w[t, r] * tirx.sin(state[r, i]), axis=r)

    return [te.scan(init, te.compute((6, 3), body, name="history"), state, name="triangular")]


def first_row(inputs: Inputs) -> list[te.Tensor]:
    """A stage depends on the first state, but not on the time."""
    init, w, state = inputs("init", 1, 3), inputs("w", 3), inputs.state(5, 3)
    scaled = te.compute((3,), lambda i: state[0, i] * w[i], name="scaled")
    update = te.compute(
        (5, 3), lambda t, i: tirx.sin(state[t - 1, i]) * scaled[i] + scaled[2 - i], name="update"
    )
    return [te.scan(init, update, state, name="first_row")]


def time_last(inputs: Inputs) -> list[te.Tensor]:
    """Stages of the step have their time as the last dimension."""
    init, w, state = inputs("init", 1, 3), inputs("w", 3, 3), inputs.state(5, 3)
    k = te.reduce_axis((0, 3), name="k")
    mixed = te.compute((3, 5), lambda i, t: te.sum(w[i, k] * state[t - 1, k], axis=k), name="mixed")
    update = te.compute((5, 3), lambda t, i: tirx.tanh(mixed[i, t]), name="update")
    return [te.scan(init, update, state, name="time_last")]


def flattened(inputs: Inputs) -> list[te.Tensor]:
    """Time and batch are one dimension of the stages of the step."""
    init, w, state = inputs("init", 1, 2, 3), inputs("w", 3, 3), inputs.state(5, 2, 3)
    k = te.reduce_axis((0, 3), name="k")
    mixed = te.compute(
        (10, 3),
        lambda tb, i: te.sum(
            w[i, k] * state[tirx.floordiv(tb, 2) - 1, tirx.floormod(tb, 2), k], axis=k
        ),
        name="mixed",
    )
    update = te.compute((5, 2, 3), lambda t, b, i: tirx.tanh(mixed[t * 2 + b, i]), name="update")
    return [te.scan(init, update, state, name="flattened")]


def scan_in_a_step(inputs: Inputs) -> list[te.Tensor]:
    """Each step runs along its row: s[t, i] = sin(s[t-1, i]) · r[i-1] with r[i] = s[t, i]."""
    init, x, state = inputs("init", 1, 4), inputs("x", 5, 4), inputs.state(5, 4)
    inner_state = te.placeholder((4, 5), inputs.dtype, name="R")
    inner_init = te.compute(
        (1, 5), lambda _, t: tirx.if_then_else(t > 0, state[t - 1, 0], 0.0), name="inner_init"
    )
    inner_update = te.compute(
        (4, 5),
        lambda i, t: tirx.if_then_else(
            t > 0, tirx.sin(state[t - 1, i]) * inner_state[i - 1, t] + x[t, i], 0.0
        ),
        name="inner_update",
    )
    inner = te.scan(inner_init, inner_update, inner_state, name="inner")
    update = te.compute((5, 4), lambda t, i: inner[i, t] * 0.5 + state[t - 1, i], name="update")
    return [te.scan(init, update, state, name="outer")]


def extern_in_a_step(inputs: Inputs) -> list[te.Tensor]:
    """A running sum over the row before, which TVM computes by an extern stage."""
    init, x, state = inputs("init", 1, 3), inputs("x", 5, 3), inputs.state(5, 3)
    before = te.compute((5, 3), lambda t, i: state[t - 1, i] * x[t, i], name="before")
    sums = topi.cumsum(before, axis=1)
    update = te.compute((5, 3), lambda t, i: tirx.sin(sums[t, i]), name="update")
    return [te.scan(init, update, state, name="running")]


def product_in_a_step(inputs: Inputs) -> list[te.Tensor]:
    """A product over the row before, one element of which is zero."""
    init, x, state = inputs("init", 1, 3), inputs("x", 5, 3), inputs.state(5, 3)
    multiply = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1.0, t), name="product")
    k = te.reduce_axis((0, 3), name="k")
    of_all = te.compute((5,), lambda t: multiply(state[t - 1, k], axis=k), name="of_all")
    update = te.compute(
        (5, 3),
        lambda t, i: tirx.if_then_else(i < 1, 0.0, x[t, i]) + of_all[t] * x[t, 2 - i],
        name="update",
    )
    return [te.scan(init, update, state, name="products")]


def maximum_in_a_step(inputs: Inputs) -> list[te.Tensor]:
    """The Viterbi recurrence: s[t, j] = max over i of s[t-1, i] + w[i, j]"""
    init, w, state = inputs("init", 1, 4), inputs("w", 5, 4, 4), inputs.state(5, 4)
    i = te.reduce_axis((0, 4), name="i")
    update = te.compute(
        (5, 4), lambda t, j: te.max(state[t - 1, i] + w[t, i, j], axis=i), name="best"
    )
    return [te.scan(init, update, state, name="viterbi")]


def integer_state(inputs: Inputs) -> list[te.Tensor]:
    """A counter decides which element is read."""
    init, x, state = inputs("init", 1, 3), inputs("x", 6, 3), inputs.state(6, 3)
    count = te.placeholder((6,), "int32", name="count")
    start = te.compute((1,), lambda _: tirx.const(1, "int32"), name="start")
    counted = te.compute((6,), lambda t: tirx.floormod(count[t - 1] * 2 + 1, 3), name="counted")
    update = te.compute(
        (6, 3),
        lambda t, i: state[t - 1, i] * x[t, counted[t]] + state[t - 1, count[t - 1]],
        name="update",
    )
    return [te.scan([start, init], [counted, update], [count, state], name="counting")[1]]


def no_recurrence(inputs: Inputs) -> list[te.Tensor]:
    """One state is a function of the input alone, another of the first."""
    init, x = inputs("init", 1, 3), inputs("x", 5, 3)
    a, b = inputs.state(5, 3, name="a"), inputs.state(5, 3, name="b")
    squares = te.compute((5, 3), lambda t, i: x[t, i] * x[t, i], name="squares")
    cubes = te.compute((5, 3), lambda t, i: a[t - 1, i] * x[t, i], name="cubes")
    return [te.scan([init, init], [squares, cubes], [a, b], name="plain")[1]]


def two_layers(inputs: Inputs) -> list[te.Tensor]:
    """One recurrence over the states of another."""
    (below,) = rnn(inputs, times=3)
    v, init = inputs("v2", 3, 3), inputs("init2", 1, 2, 3)
    state = inputs.state(4, 2, 3, name="above")
    r = product(state, v, "r2", late=1)
    update = te.compute(
        state.shape, lambda t, b, h: tirx.tanh(below[t, b, h] + r[t, b, h]), name="above_update"
    )
    return [te.scan(init, update, state, name="above")]


ALL = [
    rnn, lstm, gru, cumulative_sum, no_dimension_but_time, lag_two, late_intermediate, two_states,
    last_row, one_step, no_step, constant_start, gathered_in_a_row, gathered_from_a_stage,
    gathered_time, half_the_time,
    all_rows_before, triangular, first_row, time_last, flattened, scan_in_a_step,
    extern_in_a_step, product_in_a_step, maximum_in_a_step, integer_state, no_recurrence,
    two_layers,
]  # fmt: skip
