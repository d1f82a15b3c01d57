import pytest

from graphgrad.errors import ArgumentError
from graphgrad.train.schedule import constant, warmup_cosine


@pytest.mark.parametrize(
    "step, rate", [(0, 0.5), (1, 1.0), (2, 1.5), (3, 2.0), (4, 2.0), (8, 1.0), (12, 0.0)]
)
def test_warmup_cosine(step, rate):
    assert warmup_cosine(2.0, steps=12, warmup=4)(step) == pytest.approx(rate)


def test_without_warmup_the_peak_is_first():
    assert warmup_cosine(2.0, steps=3, warmup=0)(0) == 2.0


def test_constant():
    assert {constant(0.1)(step) for step in (0, 5, 1000)} == {0.1}


@pytest.mark.parametrize("warmup", [-1, 10, 11])
def test_warmup_must_fit(warmup):
    with pytest.raises(ArgumentError, match=f"warm-up of {warmup} steps"):
        warmup_cosine(1.0, steps=10, warmup=warmup)
