import math
import pickle

import numpy as np
import pytest

from graphgrad.errors import ArgumentError
from graphgrad.schedule import constant, cosine, one_cycle, step_decay, warmup
from tests.peers import peer


@pytest.mark.parametrize(
    "step, rate", [(0, 0.5), (1, 1.0), (2, 1.5), (3, 2.0), (4, 2.0), (8, 1.0), (12, 0.0)]
)
def test_warmup_then_cosine(step, rate):
    assert warmup(cosine(2.0, 8), 4)(step) == pytest.approx(rate)


def test_without_warmup_the_peak_is_first():
    assert warmup(cosine(2.0, 3), 0)(0) == 2.0


def test_constant():
    assert {constant(0.1)(step) for step in (0, 5, 1000)} == {0.1}


def torch_rates(make, steps):
    """Return the rates of a scheduler of torch for a peak of 0.5."""
    torch = peer("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler = make(torch.optim.lr_scheduler, optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("ours, theirs", [
    (step_decay(0.5, 3, 0.2), lambda s, o: s.StepLR(o, 3, 0.2)),
    (cosine(0.5, 20), lambda s, o: s.CosineAnnealingLR(o, 20)),
    (cosine(0.5, 20, 0.1), lambda s, o: s.CosineAnnealingLR(o, 20, 0.1)),
    (one_cycle(0.5, 20), lambda s, o: s.OneCycleLR(o, 0.5, 20)),
    (one_cycle(0.5, 20, 0.5, 10.0, 100.0), lambda s, o: s.OneCycleLR(
        o, 0.5, 20, pct_start=0.5, div_factor=10.0, final_div_factor=100.0)),
], ids=["step", "cosine", "cosine to 0.1", "one cycle", "one cycle with all settings"])  # fmt: skip
def test_rates_are_those_of_torch(ours, theirs):
    assert [ours(step) for step in range(20)] == pytest.approx(torch_rates(theirs, 20), rel=1e-12)


@pytest.mark.parametrize("schedule, step", [(cosine(0.5, 20, 0.1), 20), (one_cycle(0.5, 20), 19)])
def test_the_last_rate_is_kept(schedule, step):
    assert schedule(step) == schedule(step + 1) == schedule(step + 1000)


@pytest.mark.parametrize("make, text", [
    (lambda: warmup(constant(0.1), -1), "warmup: steps=-1"),
    (lambda: cosine(0.1, 0), "cosine: steps=0"),
    (lambda: step_decay(0.1, 0), "step_decay: every=0"),
    (lambda: one_cycle(0.1, 3), "one_cycle: 3 steps"),
    (lambda: one_cycle(0.1, 30, 1.0), "one_cycle: 30 steps with warmup_share=1.0"),
    (lambda: constant(-0.1), "constant: rate=-0.1 must be a finite number"),
    (lambda: step_decay(math.inf, 3), "step_decay: rate=inf"),
    (lambda: step_decay(0.1, 3, -2.0), "step_decay: factor=-2.0"),
    (lambda: step_decay(0.1, 2.5), "step_decay: every=2.5 must be a whole number"),
    (lambda: cosine(math.nan, 5), "cosine: peak=nan"),
    (lambda: cosine(0.1, 5, "0"), "cosine: lowest='0'"),
    (lambda: cosine(0.1, True), "cosine: steps=True"),
    (lambda: warmup(0.1, 5), "warmup: 0.1 is no schedule; .* schedule.constant"),
    (lambda: one_cycle(-1, 30), "one_cycle: peak=-1"),
    (lambda: one_cycle(0.1, 30, 0.3, 0.0), "one_cycle: initial_divisor=0.0 must be above 0"),
    (lambda: one_cycle(0.1, 30, 0.3, 1.0, 0), "one_cycle: final_divisor=0 must be above 0"),
], ids=range(16))  # fmt: skip
def test_bad_settings(make, text):
    with pytest.raises(ArgumentError, match=text):
        make()


@pytest.mark.parametrize("schedule", [
    constant(0.5), step_decay(0.5, 3), cosine(0.5, 20, 0.1), one_cycle(0.5, 20),
    warmup(cosine(0.5, np.int64(15)), 5),
], ids=range(5))  # fmt: skip
def test_pickling(schedule):
    other = pickle.loads(pickle.dumps(schedule))
    assert [other(step) for step in range(25)] == [schedule(step) for step in range(25)]
