"""What the exported steps of these tests are trained on, and by which optimizer."""

import numpy as np

import graphgrad as gg
from tests.frontend.graphs import random

ADAM = gg.optim.Adam(0.01)
BATCH = random(6, 4), np.arange(6) % 3


def images(seed):
    generator = np.random.default_rng(seed)
    return random(4, 1, 8, 8, seed=seed), generator.integers(0, 10, 4)


def rows(seed):
    return random(6, 4, seed=seed), (np.arange(6) + seed) % 3


def values(seed):
    return random(8, 6, seed=seed), random(8, 3, seed=seed + 50)
