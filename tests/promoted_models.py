"""Models in float64, for what float32 is too coarse to judge."""

import copy

from graphgrad.check.promote import promote_to_float64
from graphgrad.check.promote_type import promote_array


def promoted(model):
    """Return a model with float64 in the place of every lower float."""
    wide = copy.copy(model)
    wide.mod, obstacles = promote_to_float64(model.mod)
    if obstacles:
        raise ValueError(f"the model cannot be promoted to float64: {obstacles[0]}")
    wide.params = {name: promote_array(array) for name, array in model.params.items()}
    wide.state = {name: promote_array(array) for name, array in model.state.items()}
    return wide
