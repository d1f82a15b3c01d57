"""Optimizers, loss scales, windows and clips: a device trains as the host does.

Batches are of two shapes in turn, the model is evaluated in between, and the state saved and loaded
in the middle. Steps are skipped where they are skipped on the host, and the scale is the same.
"""

import numpy as np
import pytest

import graphgrad as gg
from graphgrad.schedule import cosine, warmup
from graphgrad.train import loss_scale
from tests.cuda.device.running import TOLERANCE, gpu, twice
from tests.train.nets import perceptron

STEPS = 6


DECAYED = (
    gg.optim.group(max_rank=1, weight_decay=0.0, learning_rate_scale=2.0),
    gg.optim.group("fc2.*", weight_decay=0.3),
)
CASES = {
    "scaled": (
        gg.optim.AdamW(0.01, epsilon=1e-3, clip_norm=0.05, groups=DECAYED), "float16", 1, 4
    ),
    "window": (
        gg.optim.RMSprop(0.01, epsilon=1e-2, momentum=0.9, centered=True, clip_value=0.01),
        "float16", 2, 7,
    ),
    "amsgrad": (
        gg.optim.Adam(0.01, epsilon=1e-3, weight_decay=0.1, amsgrad=True), "float32", 1, 0
    ),
    "adagrad": (
        gg.optim.Adagrad(
            0.05, learning_rate_decay=0.1, initial_accumulator=0.1, clip_value=0.1, clip_norm=0.1
        ),
        "bfloat16", 2, None,
    ),
    "nesterov": (
        gg.optim.SGD(0.05, 0.9, 0.01, nesterov=True, groups=DECAYED[1:]), "bfloat16", 1, None
    ),
    "dampening": (gg.optim.SGD(0.05, 0.9, dampening=0.5, clip_norm=0.5), "float32", 2, 1),
}  # fmt: skip
"""The optimizer, the precision, micro-batches, and the number of a batch that is not finite."""

QUICK = ("scaled",)


@pytest.fixture(autouse=True)
def short_growth(monkeypatch):
    """A loss scale that overflows float16 at first, and grows again within the run."""
    monkeypatch.setitem(loss_scale.INITIAL, "scale", 2.0**19)
    monkeypatch.setattr(loss_scale, "_GROWTH_INTERVAL", 2)


def train(step, bad, path):
    """Make some steps; return what they told, and what the step then holds, by name."""
    rate = warmup(cosine(0.02, STEPS), 2)
    generator = np.random.default_rng(0)
    losses, applied = [], []
    for index in range(STEPS * step.accumulate):
        x = generator.standard_normal((3 + index % 2, 4), "float32")
        if index == bad:
            x[0, 0] = np.inf
        step.learning_rate = rate(step.steps)
        if index == 5:
            step.save(path)
            step(x, np.arange(len(x)) % 3)
            step.load(path)
        loss = step(x, np.arange(len(x)) % 3)
        losses.append(float(loss))
        applied.append(loss.applied)
        if index % 2 == 0:
            (output,) = step.evaluate(x).values()
    groups = {"params": step.params, "state": step.state, **step.optimizer_state}
    arrays = {f"{group} {name}": a for group, held in groups.items() for name, a in held.items()}
    counts = np.array([step.steps, step.skipped, step.loss_scale or 0, *applied])
    return {"losses": np.array(losses), "counts": counts, "output": output, **arrays}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in CASES]
)
def test_steps_follow_those_of_the_host(name, tmp_path):
    optimizer, precision, accumulate, bad = CASES[name]
    settings = {"optimizer": optimizer, "precision": precision, "accumulate": accumulate}
    step = gg.train_step(perceptron(), target=gpu(), **settings)
    step.save(tmp_path / "start")
    names = []

    def run():
        step.load(tmp_path / "start")
        reached = train(step, bad, tmp_path / "middle")
        names[:] = reached
        return list(reached.values())

    recorded = twice(run)
    step._arena.records = False
    for key, value, plain in zip(names, recorded, run(), strict=True):
        assert value.tobytes() == plain.tobytes(), f"{key} of steps that are recorded"
    expected = train(gg.train_step(perceptron(), **settings), bad, tmp_path / "host")
    assert list(expected) == names
    for key, value in zip(names, recorded, strict=True):
        exact, tolerance = expected[key], 0 if key == "counts" else TOLERANCE[precision]
        finite = np.isfinite(exact)
        assert (np.isfinite(value) == finite).all(), key
        bound = tolerance * np.abs(exact[finite]).max(initial=1e-6)
        np.testing.assert_allclose(value[finite], exact[finite], 0, bound, err_msg=key)
    assert (bad is not None) + (precision == "float16") <= step.skipped < STEPS
