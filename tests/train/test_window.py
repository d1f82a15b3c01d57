import ml_dtypes
import numpy as np
import pytest
import tvm

from graphgrad.errors import AliasError
from graphgrad.lower.arrays import to_tensor
from graphgrad.train.window import Window

PARAMS = {
    "w": np.arange(6, dtype="float64"),
    "half": np.ones(3, "float16"),
    "brain": np.ones(2, ml_dtypes.bfloat16),
    "frozen": np.ones(5),
}
STATISTICS = {"mean": np.full(4, 2.0), "count": np.array(3)}


@pytest.fixture
def window():
    return Window(PARAMS, STATISTICS, ["w", "half", "brain"], tvm.cpu())


def test_what_it_holds(window):
    types = {
        group: {name: (str(array.dtype), array.shape) for name, array in members.items()}
        for group, members in window.arrays().items()
    }
    assert types == {
        "window": {"loss": ("float64", ()), "weight": ("float64", ())},
        "window_state": {"mean": ("float64", (4,)), "count": ("int64", ())},
        "accumulators": {
            "w": ("float64", (6,)), "half": ("float32", (3,)), "brain": ("float32", (2,)),
        },
    }  # fmt: skip
    assert len(window.everything()) == 7


def test_the_first_micro_batch_opens_it(window):
    seen = []
    for _ in range(3):
        seen.append((window.accumulated, int(window.opens.numpy())))
        window.replace({})
    assert seen == [(0, 1), (1, 0), (2, 0)]


def test_replace_takes_the_order_of_everything(window):
    fresh = [to_tensor(np.full(3, value)) for value in range(7)]
    window.replace(dict(enumerate(fresh)))
    assert all(a.same_as(b) for a, b in zip(window.everything(), fresh, strict=True))


def test_restore_copies(window):
    groups = window.arrays()
    groups["accumulators"]["w"][...] = 5
    window.restore(groups, 2)
    groups["accumulators"]["w"][...] = 6
    np.testing.assert_array_equal(window.arrays()["accumulators"]["w"], 5)
    assert window.accumulated == 2
    window.restore({}, 0)
    assert window.accumulated == 0


@pytest.mark.parametrize("group, name", [
    ("accumulators", "half"), ("window_state", "mean"), ("window", "loss"),
])  # fmt: skip
def test_what_may_not_be_shared(window, group, name):
    with pytest.raises(AliasError, match=f"'x' shares memory with the {group} of '{name}'"):
        window.check_overlap({"x": window._groups[group][name]})
    window.check_overlap({"x": to_tensor(np.zeros(9))})
