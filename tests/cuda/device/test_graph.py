"""Steps that are recorded as a graph: the bits of steps that are not."""

import gc

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.memory.donation import DONATED
from graphgrad.runtime.cuda_graph import Recorded
from tests.cuda.device.running import gpu
from tests.running import function
from tests.train.nets import deep

STEPS = 6
FORMS = [((3,), "float32")]
Y = np.arange(4)
X = np.random.default_rng(0).standard_normal((STEPS, 4, 3, 8, 8)).astype("float32")


def steps(**settings):
    """Return two steps of a network with batch norm and dropout: recorded, and as it is."""
    return [
        gg.train_step(
            deep(blocks=2, channels=4), optimizer=gg.optim.Adam(0.01), target=gpu(),
            cuda_graph=is_recorded, **settings,
        )
        for is_recorded in (True, False)
    ]  # fmt: skip


def assert_equal(recorded, plain):
    for name, value in {**plain.params, **plain.state}.items():
        assert value.tobytes() == {**recorded.params, **recorded.state}[name].tobytes(), name


def test_every_step_has_the_bits_of_one_that_is_not_recorded(launches, tmp_path):
    recorded, plain = steps(precision="float16")
    for step in (recorded, plain):
        step.save(tmp_path / "start")
    losses = []
    for index, x in enumerate(X):
        if index == 4:
            recorded.learning_rate = plain.learning_rate = 0.02
        # Read at the end: a later launch must not overwrite the loss of an earlier one.
        losses.append((recorded(to_tensor(x, tvm.cuda()), Y), plain(x, Y)))
    assert len(launches) == STEPS - 1 and len(set(map(id, launches))) == 1
    assert [float(a) for a, _ in losses] == [float(b) for _, b in losses]
    assert_equal(recorded, plain)
    recorded.load(tmp_path / "start")
    plain.load(tmp_path / "start")
    assert float(recorded(X[0], Y)) == float(plain(X[0], Y))
    assert_equal(recorded, plain)


def addition():
    """Return a function on the device that writes the sum of two vectors to a third."""
    types = [((3,), "float32")] * 3

    def build(b, x, y, place):
        # What lies in the place is read, so that the result may take it over.
        nothing = b.emit(relax.op.multiply(place, relax.const(0, "float32")))
        return relax.Tuple([b.emit(relax.op.add(b.emit(relax.op.add(x, y)), nothing))])

    mod = function(build, *types)
    mod["main"] = mod["main"].with_attr(DONATED, [[2, 0]])
    add = relax.VirtualMachine(gg.compile(mod, gpu()), tvm.cuda())["main"]

    def run(x, y, scratch):
        (result,) = add(x, y, scratch)
        assert result.data_ptr() == scratch.data_ptr()
        return [result]

    return run


def vector(value):
    return to_tensor(np.full(3, value, "float32"), tvm.cuda())


def test_arguments_that_move_are_copied(launches):
    recorded, fixed, scratch = Recorded(addition(), tvm.cuda(), [], FORMS), vector(1), [vector(0)]
    kept = []
    for value in range(5):
        kept.append(vector(value))  # so that the next is elsewhere
        kept += recorded(scratch, fixed, kept[-1])
        np.testing.assert_array_equal(kept[-1].numpy(), value + 1)
    assert recorded.is_recorded and len(launches) == 4
    # Where the other one moves, the graph would read what was there.
    (result,) = recorded(scratch, vector(10), kept[0])
    np.testing.assert_array_equal(result.numpy(), 10)
    assert launches[-1] is not launches[-2]


def test_what_is_overwritten_is_never_copied(launches):
    """A copy of it would be overwritten in its place."""
    recorded, scratch = Recorded(addition(), tvm.cuda(), [0], FORMS), [vector(0)]
    kept = [vector(value) for value in range(4)]
    for _ in range(2):
        for value in range(2):
            (result,) = recorded(scratch, kept[value], kept[3])
            np.testing.assert_array_equal(result.numpy(), value + 3)
    assert not launches
    for _ in range(3):
        (result,) = recorded(scratch, kept[1], kept[3])
        np.testing.assert_array_equal(result.numpy(), 4)
    assert len(launches) == 3
    # Likewise another scratch: the graph would write to memory that is somebody else's by now.
    other = [vector(0)]
    recorded(other, kept[1], kept[3])
    assert len(launches) == 3


def test_what_cannot_be_recorded_is_computed_as_it_is(launches):
    add = addition()

    def waits(*given):
        results = add(*given)
        results[0].numpy()
        return results

    recorded, scratch = Recorded(waits, tvm.cuda(), [], FORMS), [vector(0)]
    given = vector(1), vector(2)
    recorded(scratch, *given)
    with pytest.warns(UserWarning, match="not recorded as a graph"):
        recorded(scratch, *given)
    for _ in range(2):
        (result,) = recorded(scratch, *given)
        np.testing.assert_array_equal(result.numpy(), 3)
    assert "recorded" in recorded.refusal or "CUDA" in recorded.refusal
    assert not launches


def test_garbage_is_not_collected_while_recording(launches):
    """A tensor that is freed then would end the process."""

    class Cycle:
        def __init__(self):
            self.itself, self.tensor = self, vector(0)

    add = addition()

    def littering(*given):
        thresholds = gc.get_threshold()
        gc.set_threshold(1)
        try:
            return [add(*given)[0] for _ in [[object() for _ in range(100)]]]
        finally:
            gc.set_threshold(*thresholds)

    recorded, scratch = Recorded(littering, tvm.cuda(), [], FORMS), [vector(0)]
    for _ in range(3):
        Cycle()
        (result,) = recorded(scratch, vector(1), vector(2))
        np.testing.assert_array_equal(result.numpy(), 3)
    assert launches


def test_memory_that_is_freed_is_forgotten(launches):
    recorded, scratch = Recorded(addition(), tvm.cuda(), [], FORMS), [vector(0)]
    given = vector(1), vector(2)
    for _ in range(3):
        recorded(scratch, *given)
    assert len(launches) == 2
    recorded.forget()
    launches.clear()
    assert not recorded.is_recorded
    (result,) = recorded(scratch, *given)
    np.testing.assert_array_equal(result.numpy(), 3)
    assert not launches  # as at a first call
