import numpy as np
import pytest
import tvm

from graphgrad.errors import AliasError
from graphgrad.ir.arrays import to_tensor
from graphgrad.train.state import TrainState, describe
from tests.ir.test_arrays import aligned

PARAMS = {"w": np.arange(64, dtype="float32"), "frozen": np.ones(16, "float32")}
STATISTICS = {"mean": np.full(32, 2.0)}


@pytest.fixture
def state():
    described = describe(PARAMS, STATISTICS, ["w"], {"momentum": 0.0})
    return TrainState(described, {**PARAMS, **STATISTICS}, tvm.cpu())


def test_groups(state):
    groups = state.arrays()
    assert {group: list(members) for group, members in groups.items()} == {
        "params": ["w", "frozen"],
        "state": ["mean"],
        "momentum": ["w"],
    }
    np.testing.assert_array_equal(groups["params"]["w"], PARAMS["w"])
    assert not groups["momentum"]["w"].any()
    assert len(state.everything()) == 5 and len(state.of_model()) == 3


def test_replace_takes_the_order_of_a_step(state):
    fresh = [to_tensor(np.full(3, value)) for value in (0.0, 1.0, 2.0, 3.0)]
    frozen = state.params["frozen"]
    state.replace(dict(enumerate(fresh)))
    held = [state.updates, state.params["w"], state.state["mean"], state.slots["momentum"]["w"]]
    assert all(a.same_as(b) for a, b in zip(held, fresh, strict=True))
    assert state.params["frozen"].same_as(frozen)


def test_restore_copies(state):
    groups = state.arrays()
    groups["momentum"]["w"][...] = 5
    state.restore(groups, updates=7)
    groups["momentum"]["w"][...] = 6
    np.testing.assert_array_equal(state.arrays()["momentum"]["w"], 5)
    assert state.updates.numpy() == 7


def test_restore_takes_memory_before_it_overwrites(state, monkeypatch):
    def full(_):
        raise RuntimeError("no memory")

    before, given = state.arrays(), state.arrays()
    given["params"]["w"][...] = 5
    monkeypatch.setattr(state, "scalar", full)
    with pytest.raises(RuntimeError):
        state.restore(given, updates=7)
    np.testing.assert_array_equal(state.arrays()["params"]["w"], before["params"]["w"])


@pytest.mark.parametrize("start, stop, shares", [
    (0, 64, True), (0, 16, True), (48, 64, True), (48, 112, True), (64, 128, False),
])  # fmt: skip
def test_overlap_of_parts(state, start, stop, shares):
    """The first half of the caller's memory is the parameter."""
    memory = aligned((128,))
    state.params["w"] = tvm.runtime.from_dlpack(memory[:64])
    lent = {"x": tvm.runtime.from_dlpack(memory[start:stop])}
    if shares:
        with pytest.raises(AliasError, match="input 'x' shares memory with the parameter 'w'"):
            state.check_overlap(lent)
    else:
        state.check_overlap(lent)


@pytest.mark.parametrize("owner, message", [
    (lambda s: s.state["mean"], "the statistic 'mean'"),
    (lambda s: s.slots["momentum"]["w"], "the momentum of 'w'"),
    (lambda s: s.params["frozen"], None),
], ids=["statistic", "momentum", "frozen"])  # fmt: skip
def test_what_may_not_be_shared(state, owner, message):
    lent = {"x": owner(state)}
    if message is None:
        state.check_overlap(lent)
    else:
        with pytest.raises(AliasError, match=message):
            state.check_overlap(lent)
