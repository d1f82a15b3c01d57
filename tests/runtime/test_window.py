"""Exports of a step over several micro-batches, with TVM's runtime alone."""

import numpy as np
import pytest

import graphgrad as gg
from graphgrad.runtime import ExportedStep, StateError
from graphgrad.train import checkpoint
from tests.exports import run_alone
from tests.frontend.graphs import random
from tests.train.nets import held, normalized

MOMENTUM = gg.optim.SGD(0.1, momentum=0.9)


def images(seed):
    return random(4, 2, 5, 5, seed=seed), (np.arange(4) + seed) % 4


@pytest.fixture(scope="module")
def step():
    """A step behind the first of three micro-batches of its second window."""
    step = gg.train_step(normalized(), optimizer=MOMENTUM, accumulate=3)
    for seed in range(4):
        step(*images(seed))
    return step


@pytest.fixture(scope="module")
def folder(step, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "export"
    step.export(folder)
    return folder


@pytest.fixture
def original(step, folder):
    """The step, where it was exported."""
    step.load(folder / "state.safetensors")
    return step


def test_alone(original, folder, tmp_path):
    """It goes on within the window, to the middle of the next one, whose file the step takes."""
    given = [images(seed) for seed in range(5, 9)]
    losses, outputs = run_alone(folder, given, tmp_path / "results")
    assert losses == [float(original(*each)) for each in given]
    for name, expected in original.evaluate(given[0][0]).items():
        assert outputs[name].tobytes() == expected.tobytes()
    reached = held(original)
    expected = float(original(*images(9))), held(original)
    original.load(tmp_path / "results.state")
    assert (original.steps, original.accumulated, held(original)) == (2, 2, reached)
    assert (original(*images(9)), held(original)) == expected and original.accumulated == 0


def test_a_micro_batch_that_is_not_finite_discards_its_window(original, folder, tmp_path):
    exported = ExportedStep(folder)
    assert (exported.accumulate, exported.accumulated, exported.steps) == (3, 1, 1)
    before = held(exported)
    x, y = images(5)
    exported(x * np.float32(np.inf), y), exported(x, y)
    assert (exported.accumulated, exported.steps, exported.skipped) == (0, 2, 1)
    assert held(exported) == before
    exported(x, y)
    exported.discard()
    exported.save(tmp_path / "closed")
    for seed in range(3):
        exported(*images(seed))
    one = gg.train_step(normalized(), optimizer=MOMENTUM)
    one.load(tmp_path / "closed")
    assert held(one) == before and one.skipped == 1
    original.load(tmp_path / "closed")
    for seed in range(3):
        original(*images(seed))
    assert held(original) == held(exported) != before


def test_an_open_window_is_of_its_accumulate_alone(original, folder, tmp_path):
    exported = ExportedStep(folder)
    before = held(exported)
    facts = {**original._facts(), "accumulate": 4, "extra": {}}
    checkpoint.write(tmp_path / "open", original._tensors.arrays(with_window=True), facts)
    with pytest.raises(StateError, match=r"1 of 4 micro-batches.*accumulate=3"):
        exported.load(tmp_path / "open")
    assert held(exported) == before and exported.accumulated == 1


def test_other_weights_start_at_a_window_of_their_own(original, folder):
    exported = ExportedStep(folder, weights={**original.params, **original.state})
    assert (exported.steps, exported.accumulated) == (0, 0)
    fresh = gg.train_step(normalized(), optimizer=MOMENTUM, accumulate=3)
    fresh._functions = original._functions
    groups = {**original._tensors.arrays(), "momentum": fresh._tensors.arrays()["momentum"]}
    fresh._tensors.restore(groups, 0)
    for seed in range(3):
        assert exported(*images(seed)) == fresh(*images(seed))
    assert held(exported) == held(fresh)
