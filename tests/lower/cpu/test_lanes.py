import pytest
from tvm import te, tirx

import graphgrad as gg
from graphgrad.fallback.externs.cumulative import running
from graphgrad.fallback.scans.checkpoints import as_single_row
from tests.lower.cpu.test_time_loops import STEPS, recurrence, scan, tensor
from tests.lower.kernel_programs import run


def in_lanes(runs):
    """The text of what a thread does for its lanes; empty if steps are not over lanes."""
    return runs.text.partition('T.sblock("lanes")')[2]


def created(inputs, outputs):
    """A kernel as it is scheduled, which computes what it computes as it is built."""
    runs = run(inputs, outputs, make=gg.fallback.create_prim_func)
    runs.agree()
    return runs


@pytest.mark.parametrize("shape", [(4, 64, 16), (3, 50, 40), (7, 1024)], ids=str)
def test_steps_of_channels_that_are_independent_are_over_parts_of_these(shape):
    x, a = tensor(STEPS + 1, *shape, name="x"), tensor(*shape[1:], name="a")

    def update(state):
        decay = te.compute(state.shape, lambda t, i, *at: te.exp(-a(*at) * a(*at)), name="decay")
        return te.compute(
            state.shape, lambda t, *at: decay(t, *at) * state(t - 1, *at) + x(t, *at), name="next"
        )

    first, states = scan(update, *shape)
    step = in_lanes(created([x, a, first], [states]))
    assert "T.axis.opaque" in step and "T.parallel" not in step


@pytest.mark.parametrize("shape", [(0, 300), (300, 0), (0, 0)], ids=str)
def test_of_no_lanes_none_are_split(shape):
    x = tensor(STEPS + 1, *shape, name="x")

    def update(state):
        return te.compute(state.shape, lambda t, *at: state(t - 1, *at) + x(t, *at), name="next")

    first, states = scan(update, *shape)
    created([x, first], [states])


@pytest.mark.parametrize("batch", [64, 48, 40])
def test_each_thread_multiplies_some_rows_of_the_batch(batch):
    inputs, states = recurrence(batch, 64)
    step = in_lanes(created(inputs, [states]))
    assert "registers" in step and "T.parallel" not in step


def test_a_large_factor_is_read_once_for_all_lanes():
    inputs, states = recurrence(16, 256)
    assert not in_lanes(created(inputs, [states]))


def shifted(state):
    """Each channel reads its neighbor."""
    extent = state.shape[1]
    return lambda t, i, j: state(t - 1, tirx.floormod(i + 1, extent), j)


def swapped(state):
    """Two axes of the same length are read the other way around."""
    return lambda t, i, j: state(t - 1, j, i)


def reversed_(state):
    """The channels are read backwards."""
    return lambda t, i, j: state(t - 1, state.shape[1] - 1 - i, j)


@pytest.mark.parametrize("read", [shifted, swapped, reversed_])
def test_what_reads_other_lanes_is_not_split_along_them(read):
    x = tensor(STEPS + 1, 128, 128, name="x")

    def update(state):
        before = read(state)
        return te.compute(state.shape, lambda *at: 0.5 * before(*at) + x(*at), name="next")

    first, states = scan(update, 128, 128)
    step = in_lanes(created([x, first], [states]))
    # The second axis may be split, where only the first is read at another place.
    assert bool(step) == (read is not swapped)


def test_lanes_are_those_of_all_states():
    first_h, first_c = tensor(64, 128, name="h0"), tensor(64, 128, name="c0")
    h, c = tensor(STEPS + 1, 64, 128, name="h"), tensor(STEPS + 1, 64, 128, name="c")
    at_zero = [as_single_row(first) for first in (first_h, first_c)]
    # One state hands its channels to the other in reverse, so only the batch is left.
    new_h = te.compute(h.shape, lambda t, i, j: te.tanh(c(t - 1, i, 127 - j)), name="new_h")
    new_c = te.compute(c.shape, lambda t, i, j: h(t - 1, i, j) * 0.5 + c(t - 1, i, j), name="new_c")
    states = te.scan(at_zero, [new_h, new_c], [h, c])
    assert in_lanes(created([first_h, first_c], list(states)))


class TestSunkMaps:
    """Maps in front of a loop, of which a step reads one row."""

    def states(self, row):
        shape = 16, 256
        x = tensor(STEPS + 2, *shape, name="x")
        inputs = te.compute(x.shape, lambda *at: te.exp(x(*at)), name="inputs")

        def update(state):
            return te.compute(
                state.shape, lambda t, *at: state(t - 1, *at) * row(inputs, t, *at), name="next"
            )

        first, states = scan(update, *shape)
        return created([x, first], [states]).text

    @staticmethod
    def allocates(text):
        """Whether the map is computed for all times."""
        return f"inputs = T.sblock_alloc_buffer(({STEPS + 2}, 16, 256))" in text

    def test_they_are_computed_in_the_step(self):
        assert not self.allocates(self.states(lambda inputs, t, *at: inputs(t + 1, *at)))

    def test_not_where_several_rows_are_read(self):
        text = self.states(lambda inputs, t, *at: inputs(t, *at) + inputs(t + 1, *at))
        assert self.allocates(text)

    def test_not_where_the_row_is_the_same_in_each_step(self):
        assert self.allocates(self.states(lambda inputs, t, *at: inputs(1, *at)))


class TestAllInLanes:
    """Kernels of which a thread goes through all loops and maps for some lanes."""

    def rows(self, *shape, axis=-1, combine=lambda a, b: a + b, gradient=False):
        """Running sums or products along an axis that is not in front, and what is made of them."""
        x = tensor(*shape, name="x")
        states = running(x, axis % len(shape), "float32", False, combine, 0.5)
        outputs = [states]
        if gradient:
            ct = tensor(*shape, name="ct")
            outputs = gg.te_gradient(states, [x], ct)
            return created([x, ct], outputs)
        return created([x], outputs)

    @staticmethod
    def is_all_in_lanes(text):
        """Whether the loop over lanes is all there is, and the only one that threads share."""
        before = text.partition('T.sblock("lanes")')[0]
        return before.count(" for ") == text.count("T.parallel") == 1 and "alloc" not in before

    @pytest.mark.parametrize("gradient", [False, True], ids=["states", "gradient"])
    @pytest.mark.parametrize("shape", [(64, 300), (50, 400), (4, 40, 200)], ids=str)
    def test_what_reads_along_rows_stays_in_caches(self, shape, gradient):
        runs = self.rows(*shape, gradient=gradient)
        assert self.is_all_in_lanes(runs.text)

    def test_loops_of_one_kernel_hand_on_what_they_compute(self):
        runs = self.rows(64, 300, combine=lambda a, b: a * b, gradient=True)
        assert self.is_all_in_lanes(runs.text) and runs.text.count("T.axis.opaque") == 2

    @pytest.mark.parametrize(
        "shape, axis",
        [((300, 64), 0), ((53, 400), 1), ((8, 400), 1), ((2, 40), 1)],
        ids=["smooth", "prime", "few", "small"],
    )
    def test_not_where_it_does_not_pay(self, shape, axis):
        assert not self.is_all_in_lanes(self.rows(*shape, axis=axis).text)

    def test_not_where_a_map_reads_other_lanes(self):
        x = tensor(64, 300, name="x")
        states = running(x, 1, "float32", False, lambda a, b: a + b, 0.0)
        mirrored = te.compute(x.shape, lambda i, t: states(63 - i, t), name="mirrored")
        assert not self.is_all_in_lanes(created([x], [mirrored]).text)

    def test_not_where_a_sum_is_over_lanes(self):
        x = tensor(64, 300, name="x")
        states = running(x, 1, "float32", False, lambda a, b: a + b, 0.0)
        i = te.reduce_axis((0, 64), name="i")
        sums = te.compute((300,), lambda t: te.sum(states(i, t), axis=i), name="sums")
        assert not self.is_all_in_lanes(created([x], [sums]).text)


def test_a_thread_takes_whole_cache_lines():
    """However long a step of one lane is."""
    x = tensor(STEPS + 1, 3, 512, 32, name="x")

    def update(state):
        return te.compute(
            state.shape,
            lambda t, i, j, k: x(t, i, j, k) + state(t - 1, i, 511 - j, k),
            name="next",
        )

    first, states = scan(update, 3, 512, 32)
    step = in_lanes(created([x, first], [states]))
    assert "part_1 % 2 * 16" in step
