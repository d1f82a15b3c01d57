"""Random loops beside PyTorch: `bench/campaigns/recurrences.py` judges as many as one likes."""

import numpy as np
import pytest

from tests.fallback.choices import Choices
from tests.peers import peer

BLOCK = 6
"""Loops of one test."""


@pytest.fixture
def loops():
    peer("torch")
    from tests.ops import random_loops

    return random_loops


@pytest.fixture
def judge():
    peer("torch")
    from tests.ops.loop_judge import judge

    return judge


MORE = [pytest.param(block, marks=pytest.mark.slow) for block in range(1, 10)]


@pytest.mark.parametrize("block", [0, *MORE])
def test_results_and_gradients_are_those_of_torch(loops, judge, block):
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        loop = loops.random_loop(Choices(seed))
        try:
            judge(loop.module(), loop.arrays, loop.in_torch, seed % 2 == 0)
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n{loop}")


@pytest.mark.parametrize(
    "seed", [101, *(pytest.param(n, marks=pytest.mark.slow) for n in range(102, 110))]
)
def test_gradients_of_gradients_are_those_of_torch(loops, judge, seed):
    from tests.ops.loop_judge import gradient

    loop = loops.random_loop(Choices(seed))
    judge(*gradient(loop.module(), loop.arrays, loop.in_torch), False)


def test_a_loop_is_the_same_when_played_back(loops):
    choices = Choices(3)
    loop = loops.random_loop(choices)
    again = loops.random_loop(Choices(tape=choices.tape))
    assert str(loop) == str(again)
    for first, second in zip(loop.arrays, again.arrays, strict=True):
        np.testing.assert_array_equal(first, second)


def test_all_operations_and_dtypes_come(loops):
    drawn = [loops.random_loop(Choices(seed)) for seed in range(120)]
    operations = {one.operation for loop in drawn for one in loop.body.instructions}
    assert operations == loops.OPERATIONS.keys()
    assert {loop.dtype for loop in drawn} == {"float32", "float64"}
    assert any(loop.body.following[0] == 1 for loop in drawn)  # a state in the place of another
    assert {"time", "batch"} == set.union(*(set(loop.symbols) for loop in drawn))
    widest = max(array.shape[-1] for loop in drawn for array in loop.start if array.ndim)
    assert widest > 64


@pytest.mark.parametrize("what", ["result", "gradient"])
def test_what_is_wrong_is_seen(loops, judge, what):
    from tests.ops.loop_judge import DisagreementError

    loop = loops.random_loop(Choices(4))

    def wrong(*tensors):
        first, *rest = loop.in_torch(*tensors)
        offset = {"result": 1e-3, "gradient": 1e-3 * (tensors[0] - tensors[0].detach()).sum()}
        return [first + offset[what], *rest]

    with pytest.raises(DisagreementError, match=what):
        judge(loop.module(), loop.arrays, wrong, False)
