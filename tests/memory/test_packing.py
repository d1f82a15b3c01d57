"""Tensors that are in use together do not overlap, and little room is lost."""

import numpy as np
import pytest

from graphgrad.memory.packing import ALIGNMENT, Lifetime, pack


@pytest.mark.parametrize("seed", range(6))
def test_tensors_in_use_together_do_not_overlap(seed):
    rng = np.random.default_rng(seed)
    lifetimes = []
    for first in range(120):
        size, length = int(rng.integers(1, 9000)), int(rng.integers(0, 30))
        lifetimes.append(Lifetime(size, first, first + length))
    offsets, block = pack(lifetimes)
    for i, (a, at) in enumerate(zip(lifetimes, offsets, strict=True)):
        assert at % ALIGNMENT == 0 and at + a.size <= block
        for b, bt in zip(lifetimes[:i], offsets[:i], strict=True):
            if a.first <= b.last and b.first <= a.last:
                assert at + a.size <= bt or bt + b.size <= at
    in_use = [sum(x.size for x in lifetimes if x.first <= t <= x.last) for t in range(150)]
    assert block <= 1.3 * max(in_use)


def test_nothing_takes_no_room():
    assert pack([]) == ([], 0)
