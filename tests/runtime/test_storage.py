import numpy as np
import pytest

from graphgrad.runtime.storage import Storage

STORAGE = Storage({"w": [2, 3, 1, 0]})
ARRAY = np.arange(120, dtype="float32").reshape(2, 3, 4, 5)


@pytest.mark.parametrize("group", ["params", "momentum", "accumulators"])
def test_what_belongs_to_a_parameter_is_stored_as_it_is(group):
    stored = STORAGE.stored(group, "w", ARRAY)
    assert stored.shape == STORAGE.shape(group, "w", ARRAY.shape) == (4, 5, 3, 2)
    assert stored.flags.c_contiguous and stored[3, 0, 2, 1] == ARRAY[1, 2, 3, 0]
    back = STORAGE.as_in_model(group, {"w": stored})["w"]
    assert back.flags.c_contiguous
    np.testing.assert_array_equal(back, ARRAY)


@pytest.mark.parametrize("group, name", [
    ("params", "other"), ("state", "w"), ("window", "w"), ("window_state", "w"),
])  # fmt: skip
def test_all_else_is_stored_as_the_model_has_it(group, name):
    assert STORAGE.stored(group, name, ARRAY) is ARRAY
    assert STORAGE.as_in_model(group, {name: ARRAY})[name] is ARRAY
    assert STORAGE.shape(group, name, ARRAY.shape) == ARRAY.shape
