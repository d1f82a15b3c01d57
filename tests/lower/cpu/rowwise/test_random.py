"""Random programs of stages over rows: as scheduled they compute what they do as built."""

import random

import pytest
from tvm import te, tirx

from tests.lower.kernel_programs import run, tensor

PROGRAMS = 24
SHAPES = [(40, 500), (61, 331), (17, 1009), (300, 65), (8, 6, 400), (33, 16, 33)]


class Program:
    """Stages that are made one after the other, each of what was made before.

    Attributes
    ----------
    inputs, results : list of Tensor
    """

    def __init__(self, seed):
        self._chance = random.Random(seed)
        self._shape = self._chance.choice(SHAPES)
        count = 1 if len(self._shape) == 2 else self._chance.choice([1, 2])
        self._rows, self._inner = self._shape[:count], self._shape[count:]
        self._wide = [tensor(*self._shape, name="x"), tensor(*self._shape, name="z")]
        self._parameter = tensor(*self._inner, name="parameter")
        self._numbers = []
        self.inputs = [*self._wide, self._parameter]
        self.results = []
        for _ in range(self._chance.randint(3, 7)):
            kind = self._chance.choice([self._map, self._along, self._along, self._down])
            kind()
        self.results.append(te.compute(self._shape, self._element, name="last"))

    def _element(self, *index):
        """Return a sum of what may be read at a point: tensors, numbers of the row, a parameter."""
        chance, count = self._chance, len(self._rows)
        value = chance.choice(self._wide)(*index)
        if self._numbers and chance.random() < 0.7:
            number = chance.choice(self._numbers)(*index[:count])
            value = value - number * tirx.const(0.1, "float32")
        if chance.random() < 0.4:
            value = value * self._parameter(*index[count:])
        return te.tanh(value) if chance.random() < 0.3 else value

    def _map(self):
        self._wide.append(te.compute(self._shape, self._element, name="map"))
        self._result(self._wide[-1])

    def _along(self):
        axes = [te.reduce_axis((0, n)) for n in self._inner]
        reduce = self._chance.choice([te.sum, te.max, te.min])
        made = te.compute(
            self._rows, lambda *i: reduce(self._element(*i, *axes), axis=axes), name="along"
        )
        root = te.compute(self._rows, lambda *i: te.sqrt(te.abs(made(*i)) + 1.0), name="root")
        self._numbers += [made, root]
        self._result(made)

    def _down(self):
        axes = [te.reduce_axis((0, n)) for n in self._rows]
        made = te.compute(
            self._inner, lambda *i: te.sum(self._element(*axes, *i), axis=axes), name="down"
        )
        self.results.append(made)

    def _result(self, made):
        """Return what was made to the caller too, or leave it to the program's other stages."""
        if self._chance.random() < 0.5:
            self.results.append(made)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_program(seed):
    made = Program(seed)
    run(made.inputs, made.results, seed=seed).agree()


def test_most_programs_are_chains():
    """Or else this tests something else."""
    made = [Program(seed) for seed in range(6)]
    texts = [run(one.inputs, one.results).text for one in made]
    assert sum('T.sblock("task")' in text for text in texts) >= 4
