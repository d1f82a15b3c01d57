"""Training steps of every model family in low precision, by kernels of ours and by the library.

A gradient is that of float64 up to some times the errors that the host makes of it in bfloat16; of
families that make choices, up to 8 % of the length of all gradients, for one choice of a ReLU or a
maximum that roundings make otherwise changes whole channels. So these tests see what is wrong, not
what is imprecise. Recorded steps have the bits of steps that are not, whose threads run in the
reverse order where the device is emulated. All take hours on two cores:

    python -m tests.emulator python -m pytest -m slow tests/cuda/device/test_models.py
"""

import os
from functools import cache

import numpy as np
import pytest

import graphgrad as gg
from graphgrad.runtime import cuda_graph
from tests.cuda.device import nets
from tests.cuda.device.running import gpu, is_emulated

STEPS = 5
RATE = 0.05
UNITS = {"bfloat16": 2.0**-8, "tf32": 2.0**-11}
"""The largest relative error of one rounding."""

RATIO = 4
"""How much farther from float64 a gradient may be than that of the host."""

CHOICES = 0.02
"""What a few choices, of a ReLU or a maximum, may change that roundings make otherwise."""


@cache
def case(name, dtype="float32"):
    given = nets.FAMILIES[name]()
    return given if dtype == "float32" else given.promoted()


def step_of(name, precision="float32", dtype="float32", **options):
    optimizer = gg.optim.SGD(RATE)
    return gg.train_step(
        case(name, dtype).model, optimizer=optimizer, precision=precision, **options
    )


def batches(name, dtype="float32"):
    """The inputs and labels of some steps: another order of the samples in each."""
    given = case(name, dtype)
    for shift in range(STEPS):
        inputs = {k: np.roll(a, shift, 0) for k, a in given.inputs.items()}
        yield inputs, np.roll(given.labels, shift, 0)


def trained(step, name):
    """Make some steps; return the losses and everything that the step then holds."""
    losses = [float(step(*batch)) for batch in batches(name)]
    return {"losses": np.array(losses), **step.params, **step.state}


@cache
def gradients(name, precision="float32", dtype="float32", **options):
    """The change of each parameter in the first step, over the rate."""
    return first_gradients(step_of(name, precision, dtype, **options), name, dtype)


def first_gradients(step, name, dtype="float32"):
    before = step.params
    step(*next(batches(name, dtype)))
    return {k: (before[k].astype("float64") - a) / RATE for k, a in step.params.items()}


def distance(a, b):
    return np.sqrt(sum(np.sum((a[name] - b[name]) ** 2) for name in b))


def assert_follows(reached, name, precision):
    """Assert gradients to be near those of float64."""
    exact, host = gradients(name, dtype="float64"), gradients(name, "bfloat16")
    nothing = dict.fromkeys(exact, 0.0)
    size = distance(exact, nothing)
    # The host computes TF32 as float32; of the error in bfloat16, whose roundings are eight times
    # as large, an eighth is what TF32 may make.
    scale = UNITS[precision] / UNITS["bfloat16"]
    unit = UNITS[precision] if name in nets.SMOOTH else CHOICES
    assert distance(reached, exact) <= RATIO * max(scale * distance(host, exact), unit * size)
    for key, value in exact.items():
        one = {key: value}  # which may be nothing but rounding errors, as before a batch norm
        bound = max(0.3 * distance(nothing, one), RATIO * distance(host, one), 1e-6 * size)
        assert distance(reached, one) <= bound, key


@pytest.mark.slow
@pytest.mark.parametrize("precision", UNITS)
@pytest.mark.parametrize("name", nets.FAMILIES)
def test_kernels_of_ours(name, precision, monkeypatch, tmp_path):
    options = {"target": gpu(), "libraries": False}
    recorded = step_of(name, precision, **options)
    recorded.save(tmp_path / "start")
    assert_follows(first_gradients(recorded, name), name, precision)
    launched, launch = [], cuda_graph._Graph.launch
    monkeypatch.setattr(
        cuda_graph._Graph, "launch", lambda *given: launched.append(1) or launch(*given)
    )
    recorded.load(tmp_path / "start")
    reached = trained(recorded, name)
    assert len(launched) >= STEPS - 1
    plain = step_of(name, precision, cuda_graph=False, **options)
    if is_emulated():
        monkeypatch.setitem(os.environ, "GRAPHGRAD_EMULATOR_ORDER", "reverse")
    expected = trained(plain, name)
    for key, value in expected.items():
        assert reached[key].tobytes() == value.tobytes(), key


@pytest.mark.slow
@pytest.mark.parametrize("precision", UNITS)
@pytest.mark.parametrize("name", nets.FAMILIES)
def test_library(name, precision, library):
    # What stands in for the library runs on the host, and is recorded in no graph.
    step = step_of(name, precision, target=gpu(), cuda_graph=not is_emulated())
    assert_follows(first_gradients(step, name), name, precision)
    assert library is None or library.computed or name in nets.WITHOUT_LIBRARY
