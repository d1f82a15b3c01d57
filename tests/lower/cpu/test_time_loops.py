from dataclasses import replace

import pytest
from tvm import te, tirx

import graphgrad as gg
from graphgrad.fallback.scans.checkpoints import as_single_row
from graphgrad.lower.cpu.tuning import processor_of
from graphgrad.lower.target import target
from tests.lower import kernel_programs
from tests.lower.kernel_programs import run

STEPS = 5


def tensor(*shape, dtype="float32", name="x"):
    """A placeholder with the extents that te.scan takes."""
    return te.placeholder(shape, dtype, name)


def scan(update, *shape, dtype="float32", name="h"):
    """A first row that is an input, and the states of a scan; `update` gives their values."""
    first = tensor(*shape, name="first", dtype=dtype)
    state = tensor(STEPS + 1, *shape, name=name, dtype=dtype)
    return first, te.scan(as_single_row(first), update(state), state, name=name)


def product(state, w, row):
    """What the state some rows ago is multiplied to by a matrix, at all times."""
    steps, batch, hidden = state.shape
    k = te.reduce_axis((0, hidden), name="k")
    return te.compute(
        (steps, batch, w.shape[1]),
        lambda t, i, j: te.sum(state[row(t), i, k] * w[k, j], axis=k),
        name="product",
    )


def recurrence(batch, hidden, dtype="float32", row=lambda t: t - 1):
    """A layer of tanh whose state is multiplied by a matrix in each step."""
    x = tensor(STEPS + 1, batch, hidden, name="x", dtype=dtype)
    w = tensor(hidden, hidden, name="w", dtype=dtype)

    def update(state):
        of_state = product(state, w, row)
        return te.compute(state.shape, lambda *at: te.tanh(x(*at) + of_state(*at)), name="next")

    first, states = scan(update, batch, hidden, dtype=dtype)
    return [x, w, first], states


def step_of(runs):
    """The text of the loop over time."""
    _, _, step = runs.text.partition("T.axis.opaque")
    assert step, runs.text
    return step


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "batch, hidden", [(16, 64), (1, 80), (5, 33), (3, 2)], ids=["even", "one", "odd", "tiny"]
)
def test_a_step_is_scheduled_as_a_kernel(batch, hidden, dtype):
    inputs, states = recurrence(batch, hidden, dtype)
    runs = run(inputs, [states], make=gg.fallback.create_prim_func)
    runs.agree()
    if hidden == 64:
        # The product is a contraction, whose tile is stored through tanh.
        assert all(part in step_of(runs) for part in ("registers", "tanh"))


def test_panels_of_a_weight_are_filled_once_in_front_of_the_loop(monkeypatch):
    # No thread goes through all times.
    unit = replace(kernel_programs.UNIT, step_bytes=0)
    monkeypatch.setattr(kernel_programs, "UNIT", unit)
    batch, hidden = 64, 64
    x = tensor(STEPS + 1, batch, hidden, name="x")
    w = tensor(hidden, hidden, name="w")
    k = te.reduce_axis((0, hidden), name="k")

    def update(state):
        of_state = te.compute(
            state.shape, lambda t, i, j: te.sum(state[t - 1, i, k] * w[j, k], axis=k)
        )
        return te.compute(state.shape, lambda *at: x(*at) + of_state(*at) * 0.1)

    first, states = scan(update, batch, hidden)
    runs = run([x, w, first], [states], make=gg.fallback.create_prim_func)
    runs.agree()
    assert "panels = " in runs.text and "panels[" in step_of(runs)
    assert "panels = " not in step_of(runs)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_single_row_reads_panels_of_a_large_weight(transposed, monkeypatch):
    """No step is worth a copy; all of them are, where rows crowd in few cache sets."""
    unit = processor_of(target({"kind": "llvm", "mcpu": "znver5"}))
    monkeypatch.setattr(kernel_programs, "UNIT", unit)
    hidden = 1024  # more than a core's cache holds, on every processor
    x, w = tensor(STEPS + 1, 1, hidden, name="x"), tensor(hidden, hidden, name="w")
    k = te.reduce_axis((0, hidden), name="k")

    def update(state):
        of_state = te.compute(
            state.shape,
            lambda t, i, j: te.sum(
                state[t - 1, i, k] * (w[j, k] if transposed else w[k, j]), axis=k
            ),
        )
        return te.compute(state.shape, lambda *at: x(*at) + of_state(*at) * 0.01)

    first, states = scan(update, 1, hidden)
    runs = run([x, w, first], [states], make=gg.fallback.create_prim_func)
    runs.agree()
    assert "panels = " in runs.text and "panels = " not in step_of(runs)


def test_small_maps_of_a_step_run_in_vectors_on_one_thread():
    x = tensor(STEPS + 1, 64, name="x")

    def update(state):
        return te.compute(state.shape, lambda t, i: te.tanh(x[t, i] + state[t - 1, 0]))

    first, states = scan(update, 64)
    runs = run([x, first], [states], make=gg.fallback.create_prim_func)
    runs.agree()
    assert "T.vectorized" in runs.text and "T.parallel" not in step_of(runs)


def test_of_what_nobody_reads_only_recent_rows_are_kept():
    inputs, states = recurrence(16, 64)
    last = te.compute((16, 64), lambda *at: states(STEPS, *at), name="last")
    runs = run(inputs, [last], make=gg.fallback.create_prim_func)
    runs.agree()
    assert "% 2" in step_of(runs) and "registers" in step_of(runs)


def test_a_row_that_may_be_the_one_that_is_written_keeps_the_step_as_it_is():
    inputs, states = recurrence(16, 64, row=lambda t: tirx.floordiv(t, 2))
    runs = run(inputs, [states], make=gg.fallback.create_prim_func)
    runs.agree()
    assert "registers" not in step_of(runs)


def test_states_that_read_what_others_have_become():
    """An LSTM without biases: the output reads the new state of the cell."""
    batch, hidden = 16, 32
    x = tensor(STEPS + 1, batch, 4 * hidden, name="x")
    w = tensor(hidden, 4 * hidden, name="w")
    h, c = (tensor(STEPS + 1, batch, hidden, name=name) for name in "hc")
    firsts = [tensor(batch, hidden, name=f"first_{name}") for name in "hc"]
    of_state = product(h, w, lambda t: t - 1)
    gates = te.compute(x.shape, lambda *at: x(*at) + of_state(*at), name="gates")

    def gate(number, function):
        return te.compute(
            h.shape, lambda t, i, j: function(gates[t, i, j + number * hidden]), name="gate"
        )

    i, o, f = (gate(number, te.sigmoid) for number in range(3))
    g = gate(3, te.tanh)
    cell = te.compute(h.shape, lambda t, *at: f(t, *at) * c(t - 1, *at) + i(t, *at) * g(t, *at))
    out = te.compute(h.shape, lambda *at: o(*at) * te.tanh(cell(*at)))
    states = te.scan(
        [as_single_row(first) for first in firsts],
        [out, cell],
        [h, c],
    )
    runs = run([x, w, *firsts], states, make=gg.fallback.create_prim_func)
    runs.agree()
    assert "registers" in step_of(runs)


def normed_cell(rows, width, product_in_front):
    """A cell with norms of rows, whose input goes through maps that two stages read."""
    x, w = tensor(STEPS + 1, rows, width), tensor(width, width, name="w")
    gate = te.compute(x.shape, lambda *at: te.sigmoid(x(*at)), name="gate")

    def normed(read):
        k = te.reduce_axis((0, width), "k")
        total = te.compute(read.shape[:2], lambda t, i: te.sum(read[t, i, k], axis=k), name="total")
        mean = te.compute(total.shape, lambda *at: total(*at) / width, name="mean")
        return te.compute(
            read.shape, lambda t, i, j: read[t, i, j] - mean[t, i] * gate[t, i, j], name="normed"
        )

    def update(state):
        before = te.compute(state.shape, lambda t, *at: state(t - 1, *at), name="before")
        read = normed(before) if product_in_front else before
        k = te.reduce_axis((0, width), "k")
        of_state = te.compute(
            state.shape, lambda t, i, j: te.sum(read[t, i, k] * w[k, j], axis=k), name="product"
        )
        scaled = te.compute(state.shape, lambda *at: of_state(*at) * 0.1, name="scaled")
        after = normed(scaled)
        return te.compute(state.shape, lambda *at: te.tanh(after(*at) + gate(*at)), name="next")

    first, states = scan(update, rows, width)
    return [x, w, first], states


@pytest.mark.parametrize("product_in_front", [False, True])
def test_norms_and_gates_are_chains_of_rows_in_front_of_products_and_behind(product_in_front):
    inputs, states = normed_cell(16, 512, product_in_front)
    runs = run(inputs, [states], make=gg.fallback.create_prim_func)
    runs.agree()
    assert step_of(runs).count('T.sblock("task")') == 1 + product_in_front
    # Gates are computed in the steps, in a buffer of a row.
    front, _, step = runs.text.partition("T.axis.opaque")
    assert "sigmoid" in step and "sigmoid" not in front


def test_maps_in_front_of_small_steps_stay_there():
    inputs, states = normed_cell(1, 512, False)
    runs = run(inputs, [states], make=gg.fallback.create_prim_func)
    runs.agree()
    assert "sigmoid" in runs.text.partition("T.axis.opaque")[0]


@pytest.mark.parametrize("rows, is_chain", [(3, False), (4, True)])
def test_maps_of_a_step_share_a_loop_over_a_few_rows(rows, is_chain):
    """Two states, of which the second is a map of what the first has become."""
    firsts = [tensor(rows, 2048, name=f"first_{name}") for name in "ab"]
    a, b = (tensor(STEPS + 1, rows, 2048, name=name) for name in "ab")
    # What all read of one element keeps a thread from going through all times.
    next_a = te.compute(a.shape, lambda t, *at: te.tanh(a(t - 1, *at) + b(t - 1, 0, 0)), name="a")
    next_b = te.compute(a.shape, lambda *at: te.sigmoid(next_a(*at)), name="b")
    states = te.scan([as_single_row(first) for first in firsts], [next_a, next_b], [a, b])
    runs = run(firsts, states, make=gg.fallback.create_prim_func)
    runs.agree()
    assert ('T.sblock("task")' in step_of(runs)) == is_chain
