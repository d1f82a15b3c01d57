"""Random steps of loops over time: as scheduled they compute what they do as built."""

import random

import pytest
from tvm import te, tirx

import graphgrad as gg
from graphgrad.fallback.scans.checkpoints import as_single_row
from tests.lower.kernel_programs import run

STEPS = 3
SHAPES = [(16, 256), (17, 320), (5, 1024), (33, 130), (4, 2048), (2, 96)]


class Step:
    """Stages of one step, each of what was made before.

    Attributes
    ----------
    inputs, results : list of Tensor
    """

    def __init__(self, seed):
        self._chance = random.Random(seed)
        rows, width = self._chance.choice(SHAPES)
        self._shape = (STEPS + 1, rows, width)
        x, state = (te.placeholder(self._shape, "float32", name) for name in ("x", "state"))
        first = te.placeholder((rows, width), "float32", "first")
        self._weight = te.placeholder((width, width), "float32", "w")
        self._gain = te.placeholder((width,), "float32", "gain")
        self.inputs = [x, first, self._weight, self._gain]
        self._wide = [self._map(lambda *at: te.tanh(x(*at)) + 0.5, "of_x")]
        self._wide.append(self._map(lambda t, *at: state(t - 1, *at), "before"))
        self._numbers = []
        kinds = [self._product, self._halves, self._along, self._along, self._maps]
        for _ in range(self._chance.randint(3, 6)):
            self._chance.choice(kinds)()
        self._maps()
        update = self._map(lambda *at: te.tanh(self._wide[-1](*at)), "update")
        self.results = [te.scan(as_single_row(first), update, state, name="states")]

    def _map(self, body, name):
        return te.compute(self._shape, body, name=name)

    def _maps(self):
        """One tensor that several maps read."""
        read = self._chance.choice(self._wide)
        self._wide.append(self._map(lambda *at: te.sigmoid(read(*at)), "gate"))
        self._wide.append(self._map(self._element, "map"))

    def _element(self, t, i, j):
        value = self._wide[-1](t, i, j)
        if self._numbers:
            value = value - self._chance.choice(self._numbers)(t, i) * tirx.const(0.1, "float32")
        if self._chance.random() < 0.4:
            value = value * self._gain(j)
        return value + self._chance.choice(self._wide)(t, i, j)

    def _along(self):
        read = self._chance.choice(self._wide)
        k = te.reduce_axis((0, self._shape[2]))
        reduce = self._chance.choice([te.sum, te.max])
        made = te.compute(self._shape[:2], lambda t, i: reduce(read(t, i, k), axis=k), name="along")
        scale = 1.0 / self._shape[2]
        self._numbers.append(
            te.compute(self._shape[:2], lambda *at: made(*at) * scale, name="mean")
        )

    def _product(self):
        read = self._chance.choice(self._wide)
        k = te.reduce_axis((0, self._shape[2]))
        made = self._map(
            lambda t, i, j: te.sum(read(t, i, k) * self._weight(k, j), axis=k), "product"
        )
        self._wide.append(self._map(lambda *at: made(*at) * 0.01, "scaled"))

    def _halves(self):
        """Two tensors side by side, which is stored half by half."""
        a, b = self._chance.choice(self._wide), self._chance.choice(self._wide)
        half = self._shape[2] // 2

        def element(t, i, j):
            return te.if_then_else(j < half, a(t, i, j + half), te.tanh(b(t, i, j - half)))

        self._wide.append(self._map(element, "halves"))


def made_by(seed):
    step = Step(seed)
    return run(step.inputs, step.results, seed=seed, make=gg.fallback.create_prim_func)


@pytest.mark.parametrize("seed", range(8))
def test_a_step(seed):
    made_by(seed).agree()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 260))
def test_more_steps(seed):
    made_by(seed).agree()


def test_most_steps_have_chains():
    """Or else this tests something else."""
    texts = [made_by(seed).text for seed in range(6)]
    assert sum('T.sblock("task")' in text for text in texts) >= 4
