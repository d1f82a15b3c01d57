"""Maxima and minima that hand NaN on, and values among which there is some."""

import numpy as np
from tvm import te, tirx

from graphgrad.ops.elementwise import larger


def extremum(choose, x, axes):
    """Return the reduction of a tensor by `larger` or `smaller`."""
    infinity = float("-inf" if choose is larger else "inf")
    reducer = te.comm_reducer(choose, lambda ty: tirx.const(infinity, str(ty)), name="extremum")
    along = {axis: te.reduce_axis((0, x.shape[axis]), f"k{axis}") for axis in axes}
    kept = [axis for axis in range(len(x.shape)) if axis not in along]

    def element(*index):
        own = dict(zip(kept, index, strict=True)) | along
        return reducer(x(*(own[axis] for axis in range(len(x.shape)))), axis=list(along.values()))

    return te.compute([x.shape[axis] for axis in kept], element, name="extremum")


def with_nan_in_some(shape, axes, dtype="float32"):
    """Return values among which NaN has either sign and several payloads; some results see none."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal(shape).astype(dtype)
    places = generator.permutation(values.size)
    size = values.itemsize
    ones = values.reshape(-1).view(f"uint{8 * size}")
    nan = np.array(np.nan, dtype).view(f"uint{8 * size}")
    kept = np.prod([n for axis, n in enumerate(shape) if axis not in axes], dtype=int)
    count = 0 if kept == 1 else max(kept // 3, 1)
    for number, place in enumerate(places[:count]):
        ones[place] = nan | (number % 2 << (8 * size - 1)) | number % 7
    values.reshape(-1)[places[count : count + 6]] = [np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0]
    return values
