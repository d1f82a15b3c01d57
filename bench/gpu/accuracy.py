"""The accuracy policy on a short training run: what became of a network, against a reference.

The reference is computed in float64. A run in float64 must agree with it tensor by tensor. A run in
another precision may be at most four times as far from it as torch's run in that is, in the norm
over all tensors of a kind: the change of the parameters, the change of the statistics, the momenta.
A single wrong element shows in that norm, because it is orders of magnitude above rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Arrays = Mapping[str, np.ndarray]
Batch = tuple[dict[str, np.ndarray], np.ndarray]

FACTOR = 4.0
"""How much further from float64 than torch's a float32 result may be."""

FLOAT64_TOLERANCE = 1e-8
FLOOR = 1e-6
"""Of the norm over all tensors: smaller tensors are compared relative to that."""

LOSS_FLOOR = 16 * 2.0**-24
"""Relative distance of a float32 loss that is never too much: torch's may be zero by luck."""


@dataclass(frozen=True)
class Trajectory:
    """What a few training steps did.

    Attributes
    ----------
    losses : list of float
        Of each step.
    changes : dict
        By kind (``params``, ``state``, ``momentum``) and name, float64: how parameters and
        statistics have changed since the start, and the optimizer's momenta.
    """

    losses: list[float]
    changes: dict[str, Arrays]


def norm(arrays: Arrays) -> float:
    """Return the Euclidean norm over all elements of all arrays."""
    return math.sqrt(sum(float(np.sum(np.square(array))) for array in arrays.values()))


def distances(run: Trajectory, reference: Trajectory) -> dict[str, float]:
    """Return how far a run is from the reference, by kind, relative to the reference's norm.

    Raises
    ------
    ValueError
        A tensor is missing, is one too many, or has another shape.
    """
    found = {"losses": _loss_distance(run.losses, reference.losses)}
    for kind, expected in reference.changes.items():
        given = run.changes[kind]
        shapes = {name: array.shape for name, array in given.items()}
        if shapes != {name: array.shape for name, array in expected.items()}:
            raise ValueError(f"the {kind} are not those of the reference: {sorted(shapes)}")
        difference = norm({name: given[name] - expected[name] for name in expected})
        found[kind] = difference / norm(expected) if expected else 0.0
    return found


def worst_tensor(run: Trajectory, reference: Trajectory) -> tuple[str, float]:
    """Return the tensor with the largest error, relative to max(its norm, `FLOOR` of all)."""
    worst = ("", 0.0)
    for kind, expected in reference.changes.items():
        floor = FLOOR * norm(expected)
        for name, array in expected.items():
            error = float(np.linalg.norm(run.changes[kind][name] - array))
            relative = error / max(float(np.linalg.norm(array)), floor)
            if not relative <= worst[1]:  # also where it is not a number
                worst = (f"{kind} {name}", relative)
    return worst


def complaints_float64(run: Trajectory, reference: Trajectory) -> list[str]:
    """Return what is wrong with a run in float64; nothing if it is right."""
    name, error = worst_tensor(run, reference)
    loss = _loss_distance(run.losses, reference.losses)
    found = []
    if not loss <= FLOAT64_TOLERANCE:
        found.append(f"the losses are off by {loss:.1e}, relative; allowed {FLOAT64_TOLERANCE:.0e}")
    if not error <= FLOAT64_TOLERANCE:
        found.append(f"{name} is off by {error:.1e}, relative; allowed {FLOAT64_TOLERANCE:.0e}")
    return found


def complaints_against(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[str]:
    """Return what is wrong with a run, given torch's distances in the same precision."""
    allowed = {kind: FACTOR * distance for kind, distance in theirs.items()}
    allowed["losses"] = max(allowed["losses"], LOSS_FLOOR)
    return [
        f"{kind}: {distance:.1e} from float64, torch is {theirs[kind]:.1e}; allowed "
        f"{allowed[kind]:.1e}"
        for kind, distance in ours.items()
        if not distance <= allowed[kind]
    ]


def _loss_distance(losses: list[float], reference: list[float]) -> float:
    pairs = zip(losses, reference, strict=True)
    return float(np.max([abs(loss - expected) / abs(expected) for loss, expected in pairs]))
