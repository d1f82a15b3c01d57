"""Compute the reference of a family, on a CPU: graphgrad in float64, cross-checked by torch."""

from __future__ import annotations

import numpy as np
import twins
from accuracy import Batch, Trajectory, complaints_float64, distances
from families import Family
from reference import Reference, in_dtype

import graphgrad as gg

STEPS = 3
RATE = 0.05
MOMENTUM = 0.9
BATCH = 4

PERTURBATION = 1e-6
"""Relative size of the disturbance that a run must survive: some ten times float32's rounding."""

SENSITIVITY = 1e-3
"""How far, relative, a disturbed run may end from the undisturbed one."""

SEEDS = 40


def compute(family: Family, in_float32: bool) -> Reference:
    """Return the reference of a family.

    To be of use in float32, its data are the first, by seed, with which the run is stable: where an
    activation lies so close to a kink that rounding decides its side, the gradient jumps, and the
    distance of two float32 runs says nothing. Disturbing the weights by `PERTURBATION` must not
    move the result by more than `SENSITIVITY`. In the deepest networks it always does.

    Raises
    ------
    RuntimeError
        graphgrad and torch disagree in float64, or no data are stable.
    """
    model = trained_as_in_torch(family, "float64")
    weights = {
        name: array.astype(np.float32) if array.dtype.kind == "f" else array
        for name, array in (model.params | model.state).items()
    }
    seed = _stable_seed(family, weights) if in_float32 else 0
    batches = _batches(family, seed)
    wide = in_dtype(batches, "float64")
    exact = _ours(model, wide)
    theirs = _torch(family, weights, wide, "float64")
    complaints = complaints_float64(theirs, exact)
    if complaints:
        raise RuntimeError(f"{family.name}: graphgrad and torch disagree in float64: {complaints}")
    distances_of = {
        precision: distances(_torch(family, weights, batches, "float32", precision), exact)
        for precision in ("float32", "bfloat16")
    }
    facts = {"rate": RATE, "momentum": MOMENTUM, "seed": seed}
    facts["torch_float64"] = distances(theirs, exact)
    return Reference(batches, weights, exact, distances_of, facts)


def trained_as_in_torch(family: Family, dtype: str) -> gg.Model:
    """Return a family's model in which only what torch trains is trained."""
    model = family.model(dtype)
    return model.freeze(*filter(twins.is_constant, model.params))


def _batches(family: Family, seed: int) -> list[Batch]:
    return [family.batch(BATCH, seed=seed + index) for index in range(STEPS)]


def _ours(model: gg.Model, batches: list[Batch]) -> Trajectory:
    step = gg.train_step(model, optimizer=gg.optim.SGD(RATE, momentum=MOMENTUM))
    losses = [float(step(inputs, labels)) for inputs, labels in batches]
    return Trajectory(
        losses,
        {
            "params": {n: step.params[n] - model.params[n] for n in model.trainable()},
            "state": {n: a - model.state[n] for n, a in step.state.items()},
            "momentum": step.optimizer_state["momentum"],
        },
    )


def _torch(
    family: Family,
    weights: dict[str, np.ndarray],
    batches: list[Batch],
    dtype: str,
    precision: str = "float32",
) -> Trajectory:
    cast = {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in weights.items()}
    net = twins.family(family.name, cast)
    return twins.trajectory(net, batches, RATE, MOMENTUM, "cpu", precision == "bfloat16")


def _stable_seed(family: Family, weights: dict[str, np.ndarray]) -> int:
    generator = np.random.default_rng(0)
    disturbed = {
        name: array * (1 + PERTURBATION * generator.standard_normal(array.shape))
        for name, array in weights.items()
    }
    for seed in range(0, SEEDS * STEPS, STEPS):
        batches = in_dtype(_batches(family, seed), "float64")
        calm = _torch(family, weights, batches, "float64")
        moved = _torch(family, disturbed, batches, "float64")
        if max(distances(moved, calm).values()) <= SENSITIVITY:
            return seed
    raise RuntimeError(f"{family.name}: rounding decides the result with every batch tried")
